//! Things that the kernel names by text: counted under the name; the rare ones are events too.

use crate::{
    context::{Address, now, param, shard},
    format::{Format, offsets},
    maps::{NAMED, NAMED_COUNTERS, NAMED_KEYS, Place, add, count, emit, place},
};
use aya_ebpf::{
    helpers::generated,
    programs::{ProbeContext, TracePointContext},
};
use glake_common::{
    member,
    named::{Counters, NAME, family, key},
    param,
    record::{Record, kind},
    stat,
};

use core::ffi::c_void;

offsets! { DMA_MAP_TP, DMA_MAP_SG_TP, DMA_MAP_SG_ERR_TP, SWIOTLB_TP, AER_TP, XID_TP, SXID_TP, IOMMU_FAULT_TP }

/// A name as words, so that hashing takes few steps.
#[repr(C, align(8))]
struct Name([u64; NAME / 8]);

impl Name {
    /// All 0 where this kernel lacks the field.
    #[inline(always)]
    fn of(entry: &Format, field: usize) -> Name {
        let mut name = Name([0; NAME / 8]);
        // What follows the end of the string must be 0, which it is: the kernel writes no further.
        entry.text::<NAME>(field, (&raw mut name).cast());
        name
    }

    /// That of a `struct pci_dev`.
    #[inline(always)]
    fn of_pci(device: Address) -> Name {
        let mut name = Name([0; NAME / 8]);
        let from = device.follow(member::PCI_NAME);
        // SAFETY: the destination is that long; a bad source is an error, not a fault.
        unsafe {
            generated::bpf_probe_read_kernel_str(
                (&raw mut name).cast(),
                NAME as u32,
                from.0 as *const c_void,
            );
        }
        name
    }
}

/// The place of a name.
#[inline(always)]
fn place_of(family: u32, value: u32, name: &Name) -> Option<Place> {
    let Some(place) = place(&NAMED_KEYS, param(param::NAMED_MASK), key(family, value, &name.0)) else {
        count(stat::NAMED_FULL);
        return None;
    };
    let info = NAMED.get_ptr_mut(place.index())?;
    // SAFETY: fields of a map value. Whoever comes first writes them; a second one at the same time writes the same.
    unsafe {
        if (&raw const (*info).family).read_volatile() == 0 {
            (&raw mut (*info).name).cast::<[u64; NAME / 8]>().write_unaligned(name.0);
            (*info).value = value;
            (&raw mut (*info).family).write_volatile(family);
        }
    }
    Some(place)
}

/// The counters of a place, this CPU's copy.
#[inline(always)]
fn counters(place: Place) -> Option<*mut Counters> {
    NAMED_COUNTERS.get_ptr_mut(shard(place.index()))
}

/// Adds to counters of a frequent thing, whose name is field 0.
#[inline(always)]
fn tally(entry: &Format, family: u32, which: usize, bytes: u64) {
    if !entry.has(0..1) {
        return;
    }
    let Some(counters) = place_of(family, 0, &Name::of(entry, 0)).and_then(counters) else { return };
    // SAFETY: constant indices below the length.
    unsafe {
        add(&raw mut (*counters)[which], 1);
        if bytes != 0 {
            add(&raw mut (*counters)[1], bytes);
        }
    }
}

/// Fields: device, size.
#[inline(always)]
pub fn dma_map(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &DMA_MAP_TP);
    tally(&entry, family::DMA, 0, entry.u64(1));
}

/// Fields: device, lengths. The kernel cuts the array at 128 entries: bytes are then a lower bound.
#[inline(always)]
pub fn dma_map_sg(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &DMA_MAP_SG_TP);
    tally(&entry, family::DMA, 0, sum_lengths(&entry));
}

#[inline(always)]
fn sum_lengths(entry: &Format) -> u64 {
    const CHUNK: usize = 8;
    let (from, len) = (entry.data(1), entry.data_len(1));
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
    tally(&entry, family::DMA, 2, 0);
}

/// Fields: dev_name, size.
#[inline(always)]
pub fn swiotlb(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &SWIOTLB_TP);
    tally(&entry, family::SWIOTLB, 0, entry.u64(1));
}

/// Counts a rare thing, notes when, and makes it an event.
#[inline(always)]
fn rare(family: u32, value: u32, name: Name, which: usize, kind: u32, fill: impl FnOnce(&mut Record)) {
    if let Some(place) = place_of(family, value, &name) {
        if let Some(counters) = counters(place) {
            // SAFETY: `which` is below the length.
            add(unsafe { &raw mut (*counters)[which & 3] }, 1);
        }
        if let Some(info) = NAMED.get_ptr_mut(place.index()) {
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
    if !entry.has(0..1) {
        return;
    }
    let status = entry.u32(1);
    // AER_NONFATAL 0, AER_FATAL 1, AER_CORRECTABLE 2 (include/linux/aer.h); our order is corrected, nonfatal, fatal.
    let severity = match entry.u8(2) {
        0 if entry.has(2..3) => 1,
        1 => 2,
        _ => 0,
    };
    rare(family::AER, 0, Name::of(&entry, 0), severity, kind::AER, |record| {
        record.a = severity as u32;
        record.b = status;
    });
}

/// Fields: dev, error_code, msg.
#[inline(always)]
pub fn xid(ctx: &TracePointContext) {
    report(&Format::new(ctx, &XID_TP), family::XID, kind::XID);
}

/// `nv_report_error(pci_dev, code, format, arguments)`, which the driver calls for each Xid.
#[inline(always)]
pub fn xid_call(ctx: &ProbeContext) {
    let argument = |n: usize| ctx.arg::<u64>(n).unwrap_or(0);
    let (device, code) = (Address(argument(0)), argument(1) as u32);
    rare(family::XID_CALL, code, Name::of_pci(device), 0, kind::XID, |record| {
        record.a = 1;
        record.b = code;
    });
}

/// Fields: dev, error_code, msg.
#[inline(always)]
pub fn sxid(ctx: &TracePointContext) {
    report(&Format::new(ctx, &SXID_TP), family::SXID, kind::SXID);
}

#[inline(always)]
fn report(entry: &Format, family: u32, kind: u32) {
    if !entry.has(0..2) {
        return;
    }
    let code = entry.u32(1);
    rare(family, code, Name::of(entry, 0), 0, kind, |record| {
        record.b = code;
        entry.text(2, &raw mut record.text);
    });
}

/// Fields: device, iova, flags.
#[inline(always)]
pub fn iommu_fault(ctx: &TracePointContext) {
    let entry = Format::new(ctx, &IOMMU_FAULT_TP);
    if !entry.has(0..1) {
        return;
    }
    let (iova, flags) = (entry.u64(1), entry.u32(2));
    rare(family::IOMMU_FAULT, 0, Name::of(&entry, 0), 0, kind::IOMMU_FAULT, |record| {
        record.value = iova;
        record.b = flags;
    });
}
