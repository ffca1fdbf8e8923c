//! Things that the kernel names by text: counted under the name; the rare ones are events too.

use crate::{
    context::{now, param, shard},
    format::{Format, offsets},
    maps::{NAMED, NAMED_COUNTERS, NAMED_KEYS, add, count, emit, place},
};
use aya_ebpf::{helpers::generated, programs::TracePointContext};
use glake_common::{
    named::{Counters, NAME, family, key},
    param,
    record::{Record, kind},
    stat,
};

offsets! { DMA_MAP_TP, DMA_MAP_SG_TP, DMA_MAP_SG_ERR_TP, SWIOTLB_TP, AER_TP, XID_TP, SXID_TP, IOMMU_FAULT_TP }

/// A name as words, so that hashing takes few steps.
#[repr(C, align(8))]
struct Name([u64; NAME / 8]);

#[inline(always)]
fn name_of(entry: &Format, field: usize) -> Option<Name> {
    let mut name = Name([0; NAME / 8]);
    // What follows the end of the string must be 0, which it is: the kernel writes no further.
    if entry.text::<NAME>(field, (&raw mut name).cast()) { Some(name) } else { None }
}

/// The counters of a name, this CPU's copy, and its number.
#[inline(always)]
fn counters(family: u32, value: u32, name: &Name) -> Option<(*mut Counters, u32)> {
    let Some(index) = place(&NAMED_KEYS, param(param::NAMED_MASK), key(family, value, &name.0)) else {
        count(stat::NAMED_FULL);
        return None;
    };
    let info = NAMED.get_ptr_mut(index)?;
    // SAFETY: fields of a map value. Whoever comes first writes them; a second one at the same time writes the same.
    unsafe {
        if (&raw const (*info).family).read_volatile() == 0 {
            (&raw mut (*info).name).cast::<[u64; NAME / 8]>().write_unaligned(name.0);
            (*info).value = value;
            (&raw mut (*info).family).write_volatile(family);
        }
    }
    Some((NAMED_COUNTERS.get_ptr_mut(shard(index))?, index))
}

/// Adds to counters of a frequent thing.
#[inline(always)]
fn tally(family: u32, name: Option<Name>, which: usize, n: u64, bytes: Option<u64>) {
    let Some((counters, _)) = name.and_then(|name| counters(family, 0, &name)) else { return };
    // SAFETY: constant indices below the length.
    unsafe {
        add(&raw mut (*counters)[which], n);
        if let Some(bytes) = bytes {
            add(&raw mut (*counters)[1], bytes);
        }
    }
}

/// Fields: device, size.
#[inline(always)]
pub fn dma_map(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &DMA_MAP_TP);
    tally(family::DMA, name_of(&entry, 0), 0, 1, entry.u64(1));
}

/// Fields: device, lengths. The kernel cuts the array at 128 entries: bytes are then a lower bound.
#[inline(always)]
pub fn dma_map_sg(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &DMA_MAP_SG_TP);
    tally(family::DMA, name_of(&entry, 0), 0, 1, Some(sum_lengths(&entry)));
}

#[inline(always)]
fn sum_lengths(entry: &Format) -> u64 {
    const CHUNK: usize = 8;
    let (Some(from), Some(len)) = (entry.data(1), entry.data_len(1)) else { return 0 };
    let mut sum = 0u64;
    let mut chunk = 0;
    while chunk < 128 / CHUNK {
        let mut lengths = [0u32; CHUNK];
        let done = (chunk * CHUNK * 4) as u32;
        if done >= len {
            break;
        }
        // SAFETY: the destination is that long; a bad source is an error, not a fault.
        let failed = unsafe {
            generated::bpf_probe_read_kernel(
                lengths.as_mut_ptr().cast(),
                (CHUNK * 4) as u32,
                from.wrapping_add(done as usize).cast(),
            )
        };
        if failed != 0 {
            break;
        }
        let mut i = 0;
        while i < CHUNK {
            if done + (i as u32) * 4 < len {
                sum += u64::from(lengths[i]);
            }
            i += 1;
        }
        chunk += 1;
    }
    sum
}

/// Fields: device.
#[inline(always)]
pub fn dma_map_sg_error(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &DMA_MAP_SG_ERR_TP);
    tally(family::DMA, name_of(&entry, 0), 2, 1, None);
}

/// Fields: dev_name, size.
#[inline(always)]
pub fn swiotlb(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &SWIOTLB_TP);
    tally(family::SWIOTLB, name_of(&entry, 0), 0, 1, entry.u64(1));
}

/// Counts a rare thing, notes when, and makes it an event.
#[inline(always)]
fn rare(family: u32, value: u32, name: Name, which: usize, kind: u32, fill: impl FnOnce(&mut Record)) {
    if let Some((counters, index)) = counters(family, value, &name) {
        // SAFETY: `which` is below the length.
        add(unsafe { &raw mut (*counters)[which & 3] }, 1);
        if let Some(info) = NAMED.get_ptr_mut(index) {
            // SAFETY: a word of a map value.
            unsafe { (&raw mut (*info).last_ns).write_volatile(now()) };
        }
    }
    emit(kind, |record| {
        // SAFETY: a name is as long as the field.
        unsafe { (&raw mut record.name).cast::<[u64; NAME / 8]>().write_unaligned(name.0) };
        fill(record);
    });
}

/// Fields: dev_name, status, severity.
#[inline(always)]
pub fn aer(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &AER_TP);
    let Some(name) = name_of(&entry, 0) else { return };
    let status = entry.u32(1).unwrap_or(0);
    // AER_NONFATAL 0, AER_FATAL 1, AER_CORRECTABLE 2 (include/linux/aer.h); our order is corrected, nonfatal, fatal.
    let severity = match entry.u8(2) {
        Some(0) => 1,
        Some(1) => 2,
        _ => 0,
    };
    rare(family::AER, 0, name, severity, kind::AER, |record| {
        record.a = severity as u32;
        record.b = status;
    });
}

/// Fields: dev, error_code, msg.
#[inline(always)]
pub fn xid(ctx: &TracePointContext) {
    report(&Format::new(ctx, &XID_TP), family::XID, kind::XID);
}

/// Fields: dev, error_code, msg.
#[inline(always)]
pub fn sxid(ctx: &TracePointContext) {
    report(&Format::new(ctx, &SXID_TP), family::SXID, kind::SXID);
}

#[inline(always)]
fn report(entry: &Format, family: u32, kind: u32) {
    let (Some(name), Some(code)) = (name_of(entry, 0), entry.u32(1)) else { return };
    rare(family, code, name, 0, kind, |record| {
        record.b = code;
        entry.text(2, &raw mut record.text);
    });
}

/// Fields: device, iova, flags.
#[inline(always)]
pub fn iommu_fault(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &IOMMU_FAULT_TP);
    let Some(name) = name_of(&entry, 0) else { return };
    let (iova, flags) = (entry.u64(1).unwrap_or(0), entry.u32(2).unwrap_or(0));
    rare(family::IOMMU_FAULT, 0, name, 0, kind::IOMMU_FAULT, |record| {
        record.value = iova;
        record.b = flags;
    });
}
