//! NVMe commands: set-up and completion pair by controller, queue and command id, whichever kind of trace point saw them.

pub mod classic;
pub mod raw;

use crate::{
    atomic::Word,
    context::{now, param},
    maps::{FLIGHTS, NVME_CELLS, NVME_DEPTHS, NVME_KEYS, add, count, emit, file, place},
};
use glake_common::{
    nvme::{Counters, DEPTHS, FLIGHT_WAYS, Flight, NO_OPCODE, cell_key, flight_key, kind, moves_blocks},
    param,
    record::kind as record,
    stat, table,
};

/// A command as its completion tells it.
struct End {
    ctrl: u32,
    qid: u32,
    cid: u16,
    status: u16,
    retries: u8,
}

#[inline(always)]
fn keep(flight: Flight) {
    let Some(set) = FLIGHTS.get_ptr_mut(table::set_of(flight.key, param(param::FLIGHT_MASK))) else { return };
    let mut way = 0;
    while way < FLIGHT_WAYS {
        // SAFETY: `way` is below the length.
        let key = Word::of(unsafe { &raw mut (*set)[way].key });
        let seen = key.load();
        if seen == flight.key || (seen == 0 && key.claim(flight.key) == 0) {
            // SAFETY: claimed by the exchange above.
            unsafe {
                (*set)[way].start_ns = flight.start_ns;
                (*set)[way].bytes = flight.bytes;
                (*set)[way].opcode = flight.opcode;
                (*set)[way].nsid = flight.nsid;
            }
            return;
        }
        way += 1;
    }
    count(stat::NVME_FULL);
}

/// Takes a command out; all 0 if it was not kept.
#[inline(always)]
fn take(wanted: u64) -> Flight {
    let mut taken = Flight::default();
    let Some(set) = FLIGHTS.get_ptr_mut(table::set_of(wanted, param(param::FLIGHT_MASK))) else {
        return taken;
    };
    let mut way = 0;
    while way < FLIGHT_WAYS {
        // SAFETY: `way` is below the length; the flight is ours until its key is cleared, which comes last.
        unsafe {
            let flight = &raw mut (*set)[way];
            let key = Word::of(&raw mut (*flight).key);
            if key.load() == wanted {
                taken = *flight;
                key.store(0);
                return taken;
            }
        }
        way += 1;
    }
    taken
}

#[inline(always)]
fn cell(kind: u64, ctrl: u32, qid: u32, value: u32) -> Option<*mut Counters> {
    match place(&NVME_KEYS, param(param::NVME_MASK), cell_key(kind, ctrl, qid, value)) {
        Some(place) => NVME_CELLS.get_ptr_mut(place.index()),
        None => {
            count(stat::NVME_FULL);
            None
        }
    }
}

/// Counts the end of a command.
#[inline(always)]
fn ended(end: &End) {
    let (ctrl, qid, status) = (end.ctrl, end.qid, u32::from(end.status));
    let flight = take(flight_key(ctrl, qid, end.cid.into()));
    if status & 0x7ff != 0 {
        failed(ctrl, qid, if flight.key == 0 { NO_OPCODE } else { flight.opcode }, status);
    }
    if flight.key == 0 {
        count(stat::NVME_UNMATCHED);
        return;
    }
    let Some(cell) = cell(kind::COMMANDS, ctrl, qid, flight.opcode) else { return };
    let took = now().saturating_sub(flight.start_ns);
    // SAFETY: fields of a map value.
    unsafe {
        add(&raw mut (*cell).completed, 1);
        add(&raw mut (*cell).sum_ns, took);
        file(&raw mut (*cell).latency, took);
        if qid != 0 && moves_blocks(flight.opcode) {
            let words = if flight.bytes == 0 { &raw mut (*cell).untold } else { &raw mut (*cell).bytes };
            add(words, if flight.bytes == 0 { 1 } else { flight.bytes });
        }
        if end.retries != 0 {
            add(&raw mut (*cell).retries, 1);
        }
    }
}

#[inline(always)]
fn failed(ctrl: u32, qid: u32, opcode: u32, status: u32) {
    // Status code and status code type (NVMe base specification, completion queue entry, status field).
    if let Some(cell) = cell(kind::STATUS, ctrl, 0, status & 0x7ff) {
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*cell).completed }, 1);
    }
    if param(param::IO_ERRORS) == 1 {
        emit(record::NVME_ERROR, |event| {
            event.a = ctrl;
            event.b = (qid << 16) | opcode;
            event.value = u64::from(status);
        });
    }
}

/// Counts a completion by its submission queue, and keeps the largest fill.
#[inline(always)]
fn queued(ctrl: u32, qid: u32, head: u16, tail: u16) {
    let fill = fill(ctrl, qid, head.into(), tail.into());
    let Some(cell) = cell(kind::QUEUE, ctrl, qid, 0) else { return };
    // SAFETY: fields of a map value. The largest fill is read and written without a lock: one lost update of a maximum
    // that the next command makes good.
    unsafe {
        add(&raw mut (*cell).completed, 1);
        if fill > (&raw const (*cell).bytes).read_volatile() {
            (&raw mut (*cell).bytes).write_volatile(fill);
        }
    }
}

/// Entries between head and tail; 0 also where the tail has wrapped and the depth is not known.
#[inline(always)]
fn fill(ctrl: u32, qid: u32, head: u32, tail: u32) -> u64 {
    if tail >= head {
        return u64::from(tail - head);
    }
    let depth = match NVME_DEPTHS.get(ctrl & (DEPTHS - 1)) {
        // NVME_AQ_DEPTH of drivers/nvme/host/nvme.h.
        _ if qid == 0 => 32,
        Some(depth) => *depth,
        None => 0,
    };
    (depth + u64::from(tail)).saturating_sub(u64::from(head))
}

/// Counts an asynchronous event.
#[inline(always)]
fn told(ctrl: u32, result: u32) {
    if let Some(cell) = cell(kind::ASYNC, ctrl, 0, 0) {
        // SAFETY: a field of a map value.
        add(unsafe { &raw mut (*cell).completed }, 1);
    }
    emit(record::NVME_ASYNC, |event| {
        event.a = ctrl;
        event.b = result;
    });
}
