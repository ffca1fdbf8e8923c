//! The driver's event queue for one process: made, read, closed.
//!
//! The driver writes entries into pages of ours and moves `put`; we move `get`. One slot stays free; when it is full
//! the driver counts what it drops, by type, and we report that. Nothing the driver writes is trusted: pointers are
//! masked, entries that do not decode are counted as `parse`.

use super::entry::{self, Entry, kind};
use super::release::{Init, Interface, Version};
use crate::error::{Error, Kind, Result};
use crate::sys::uvm::{BLOCK, Pages, ioctl};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const SET_THRESHOLD: u32 = 57;
const ENABLE_EVENTS: u32 = 58;
const DISABLE_EVENTS: u32 = 59;
const FLUSH: u32 = 67;

/// Where the control page holds what (`UvmToolsEventControlData`).
mod control {
    pub(super) const GET_AHEAD: usize = 0;
    pub(super) const GET_BEHIND: usize = 4;
    pub(super) const PUT_BEHIND: usize = 12;
    pub(super) const DROPPED: usize = 16;
}

/// Driver status words met here (`nvstatuscodes.h`).
mod status {
    pub(super) const OK: u32 = 0;
    pub(super) const ILLEGAL_ACTION: u32 = 0x16;
    pub(super) const INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
    pub(super) const INVALID_ARGUMENT: u32 = 0x1f;
    pub(super) const NO_MEMORY: u32 = 0x51;
    pub(super) const NOT_SUPPORTED: u32 = 0x56;
}

/// Entries of a queue when nothing else is asked for: 9.4 MiB of pinned pages in V2.
pub const DEFAULT_ENTRIES: u32 = 1 << 17;

/// An open queue. Closing it (dropping it) frees what the driver holds of the target.
#[derive(Debug)]
pub struct Queue {
    // Closed first: the driver stops writing before the pages go.
    tools: OwnedFd,
    target: OwnedFd,
    interface: Interface,
    control: Pages,
    slots: Pages,
    entries: u32,
    get: u32,
    undecoded: u64,
}

/// What one visit to the queue found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Entries decoded.
    pub decoded: u64,
    /// Entries that were none of the driver's.
    pub undecoded: u64,
    /// The queue was full when it was looked at: events may have been dropped.
    pub full: bool,
}

impl Queue {
    /// Makes a queue on the UVM descriptor `target`, a descriptor of this process for the target's open file.
    /// Events are off until [`Queue::enable`]. `entries` must be a power of two of at least 2.
    ///
    /// # Errors
    /// `Missing` when the tools device is not there, `Denied` when it may not be opened, `Misuse` when `target` is a
    /// UVM descriptor without an address space (not initialised yet, or the second kind that CUDA opens).
    pub fn open(version: &Version, interface: Interface, target: OwnedFd, entries: u32) -> Result<Queue> {
        if !entries.is_power_of_two() || entries < 2 {
            return Err(Error::new(
                Kind::Misuse,
                format!("a queue of {entries} entries: not a power of two"),
            ));
        }
        let tools = open_tools()?;
        let slots = Pages::new(entries as usize * interface.layout.entry_size())?;
        // One page is enough for the control block of every release (528 or 536 bytes).
        let control = Pages::new(536)?;
        let (request, mut block) = init_block(interface.init, &slots, &control, entries, target.as_fd());
        ioctl(tools.as_fd(), request, &mut block).map_err(|e| {
            Error::os(format!("making an event queue (driver {version}, request {request})"), e)
        })?;
        let at = if interface.init == Init::VersionFirst { 52 } else { 48 };
        check("making an event queue", word(&block, at))?;
        if interface.init == Init::Requested && word(&block, 56) != 1 {
            return Err(Error::new(
                Kind::Unsupported,
                format!("driver {version} granted queue version {} instead of 1", word(&block, 56)),
            ));
        }
        Ok(Queue { tools, target, interface, control, slots, entries, get: 0, undecoded: 0 })
    }

    /// Wakes a poll on the queue when `entries` wait.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn wake_at(&self, entries: u32) -> Result<()> {
        let mut block = [0u8; BLOCK];
        put(&mut block, 0, &entries.to_ne_bytes());
        self.call("setting the queue's threshold", SET_THRESHOLD, &mut block, 4)
    }

    /// Turns the event types of `mask` (bit = type number) on.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn enable(&self, mask: u64) -> Result<()> {
        let mut block = [0u8; BLOCK];
        put(&mut block, 0, &mask.to_ne_bytes());
        self.call("turning events on", ENABLE_EVENTS, &mut block, 8)
    }

    /// Turns the event types of `mask` off.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn disable(&self, mask: u64) -> Result<()> {
        let mut block = [0u8; BLOCK];
        put(&mut block, 0, &mask.to_ne_bytes());
        self.call("turning events off", DISABLE_EVENTS, &mut block, 8)
    }

    /// Makes the driver deliver migrations whose GPU time stamps are still on their way.
    ///
    /// # Errors
    /// When the driver refuses; harmless, the events come later.
    pub fn flush(&self) -> Result<()> {
        // This one goes to the /dev/nvidia-uvm descriptor; the tools descriptor answers EINVAL.
        let mut block = [0u8; BLOCK];
        ioctl(self.target.as_fd(), FLUSH, &mut block).map_err(|e| Error::os("flushing events", e))?;
        check("flushing events", word(&block, 0))
    }

    fn call(&self, doing: &str, request: u32, block: &mut [u8; BLOCK], status_at: usize) -> Result<()> {
        ioctl(self.tools.as_fd(), request, block).map_err(|e| Error::os(doing, e))?;
        check(doing, word(block, status_at))
    }

    /// Hands every waiting entry to `each`, oldest first.
    pub fn drain(&mut self, mut each: impl FnMut(Entry)) -> Drained {
        let mask = self.entries - 1;
        let put = self.control.load_u32(control::PUT_BEHIND).unwrap_or(self.get) & mask;
        let waiting = put.wrapping_sub(self.get) & mask;
        let mut found = Drained { full: waiting == mask, ..Drained::default() };
        let size = self.interface.layout.entry_size();
        let mut bytes = [0u8; 72];
        let bytes = &mut bytes[..size];
        for i in 0..waiting {
            let slot = (self.get.wrapping_add(i) & mask) as usize;
            // `slot < entries`, so the copy lies inside; None would mean a wrong size, and then nothing is counted.
            if self.slots.copy_out(slot * size, bytes).is_none() {
                break;
            }
            match entry::decode(self.interface.layout, self.interface.cpu_number, bytes) {
                Ok(entry) => {
                    found.decoded += 1;
                    each(entry);
                }
                Err(_) => found.undecoded += 1,
            }
        }
        self.get = put;
        // Both pointers: the driver's full test looks at get_behind, its wake-up test at get_ahead.
        self.control.store_u32(control::GET_AHEAD, put);
        self.control.store_u32(control::GET_BEHIND, put);
        self.undecoded += found.undecoded;
        found
    }

    /// Events the driver dropped so far because the queue was full, by type number.
    pub fn dropped(&self) -> [u64; kind::SLOTS] {
        std::array::from_fn(|i| self.control.load_u64(control::DROPPED + 8 * i).unwrap_or(0))
    }

    /// Entries so far that were none of the driver's.
    pub fn undecoded(&self) -> u64 {
        self.undecoded
    }

    /// The UUIDs of the processors that entries index: `(index, "GPU-...")`. The CPU's is left out.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn gpus(&self) -> Result<Vec<(u16, String)>> {
        processors(self.interface, self.target.as_fd())
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tools.as_fd()
    }
}

fn open_tools() -> Result<OwnedFd> {
    const PATH: &str = "/dev/nvidia-uvm-tools";
    rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
        let error = Error::os(format!("opening {PATH}"), e.into());
        match error.kind() {
            Kind::Missing => error.remedy(
                "make the node: nvidia-modprobe -u -c 0, or in a container pass --device /dev/nvidia-uvm-tools",
            ),
            _ => error.remedy("run as root, or be given read and write on the node"),
        }
    })
}

fn init_block(
    init: Init,
    slots: &Pages,
    control: &Pages,
    entries: u32,
    target: BorrowedFd<'_>,
) -> (u32, [u8; BLOCK]) {
    let mut block = [0u8; BLOCK];
    put(&mut block, 0, &slots.address().to_ne_bytes());
    put(&mut block, 8, &u64::from(entries).to_ne_bytes());
    put(&mut block, 16, &control.address().to_ne_bytes());
    // 24..40 names one processor; all of them are wanted.
    put(&mut block, 40, &1u32.to_ne_bytes());
    put(&mut block, 44, &target.as_raw_fd().to_ne_bytes());
    let request = match init {
        Init::Plain => 56,
        Init::Requested => {
            put(&mut block, 52, &1u32.to_ne_bytes());
            56
        }
        Init::VersionFirst => {
            put(&mut block, 48, &1u32.to_ne_bytes());
            56
        }
        Init::Second => 76,
    };
    (request, block)
}

/// Reads the driver's table of processor UUIDs through a UVM descriptor.
///
/// # Errors
/// When the driver refuses.
pub fn processors(interface: Interface, uvm: BorrowedFd<'_>) -> Result<Vec<(u16, String)>> {
    let table = interface.table;
    let pages = Pages::new(table.entries * 16)?;
    let mut block = [0u8; BLOCK];
    put(&mut block, 0, &pages.address().to_ne_bytes());
    if let Some(at) = table.version_at {
        put(&mut block, at, &1u32.to_ne_bytes());
    }
    ioctl(uvm, table.request, &mut block).map_err(|e| Error::os("reading the processor table", e))?;
    check("reading the processor table", word(&block, table.status_at))?;
    let mut found = Vec::new();
    let mut uuid = [0u8; 16];
    // Entry 0 is the CPU.
    for i in 1..table.entries {
        if pages.copy_out(16 * i, &mut uuid).is_some() && uuid != [0; 16] {
            found.push((u16::try_from(i).unwrap_or(u16::MAX), uuid_text(&uuid)));
        }
    }
    Ok(found)
}

/// `GPU-` and the UUID in the usual groups.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn put(block: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word(block: &[u8; BLOCK], at: usize) -> u32 {
    block.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(u32::MAX, u32::from_ne_bytes)
}

fn check(doing: &str, found: u32) -> Result<()> {
    let (kind, why) = match found {
        status::OK => return Ok(()),
        status::ILLEGAL_ACTION => {
            (Kind::Misuse, "the descriptor has no address space yet (NV_ERR_ILLEGAL_ACTION)")
        }
        status::INSUFFICIENT_PERMISSIONS => (Kind::Denied, "the descriptor is not one of /dev/nvidia-uvm"),
        status::INVALID_ARGUMENT => (Kind::Device, "the driver found an argument invalid"),
        status::NO_MEMORY => (Kind::Exhausted, "the driver has no memory"),
        status::NOT_SUPPORTED => (Kind::Unsupported, "the driver does not support it here"),
        _ => (Kind::Device, "the driver answered with an unexpected status"),
    };
    Err(Error::new(kind, format!("{doing}: {why} (0x{found:x})")))
}

#[cfg(test)]
mod tests {
    use super::super::release::interface;
    use super::*;

    /// A queue whose "driver" is this test: it writes entries and moves `put` through the same pages.
    fn queue(entries: u32) -> Queue {
        let version = Version::parse("580.159.04").expect("a version");
        let interface = interface(&version).expect("known");
        let null = || {
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("/dev/null")
        };
        Queue {
            tools: null(),
            target: null(),
            interface,
            control: Pages::new(536).expect("pages"),
            slots: Pages::new(entries as usize * 72).expect("pages"),
            entries,
            get: 0,
            undecoded: 0,
        }
    }

    /// Writes like `enqueue_event` of uvm_tools.c: drops when one slot is left.
    fn produce(q: &Queue, kind: u8) {
        let mask = q.entries - 1;
        let get = q.control.load_u32(control::GET_BEHIND).expect("inside") & mask;
        let put = q.control.load_u32(control::PUT_BEHIND).expect("inside") & mask;
        if (q.entries + get - put) & mask == 1 {
            let at = control::DROPPED + 8 * usize::from(kind);
            let n = q.control.load_u32(at).expect("inside");
            q.control.store_u32(at, n + 1).expect("inside");
            return;
        }
        q.slots.store_u32(put as usize * 72, u32::from(kind)).expect("inside");
        q.control.store_u32(control::PUT_BEHIND, (put + 1) & mask).expect("inside");
    }

    #[test]
    fn entries_come_out_in_order_over_the_end_of_the_ring() {
        let mut q = queue(8);
        let mut seen = Vec::new();
        for round in 0..5u8 {
            for i in 0..5u8 {
                produce(&q, 1 + (round + i) % 4);
            }
            let found = q.drain(|e| seen.push(e));
            assert_eq!(found, Drained { decoded: 5, undecoded: 0, full: false });
        }
        assert_eq!(seen.len(), 25);
        assert!(matches!(seen[0], Entry::CpuFault { .. }));
        assert!(matches!(seen[1], Entry::Migration { .. }));
        assert_eq!(q.dropped().iter().sum::<u64>(), 0);
    }

    #[test]
    fn a_full_queue_reports_each_dropped_event_by_type() {
        let mut q = queue(8);
        for _ in 0..10 {
            produce(&q, kind::GPU_FAULT);
        }
        produce(&q, kind::MIGRATION);
        let found = q.drain(|_| {});
        assert_eq!(found, Drained { decoded: 7, undecoded: 0, full: true });
        assert_eq!(q.dropped()[usize::from(kind::GPU_FAULT)], 3);
        assert_eq!(q.dropped()[usize::from(kind::MIGRATION)], 1);
        produce(&q, kind::MIGRATION);
        assert_eq!(q.drain(|_| {}).decoded, 1, "a drained queue takes events again");
    }

    #[test]
    fn garbage_pointers_and_entries_are_counted_and_do_no_harm() {
        let mut q = queue(8);
        q.control.store_u32(control::PUT_BEHIND, 0xffff_fffb).expect("inside");
        for i in 0..8 {
            q.slots.store_u32(i * 72, 0xffff_ffff).expect("inside");
        }
        let found = q.drain(|_| {});
        assert_eq!(found, Drained { decoded: 0, undecoded: 3, full: false });
        assert_eq!(q.undecoded(), 3);
    }

    #[test]
    fn a_size_that_is_no_power_of_two_is_refused_before_anything_is_opened() {
        let version = Version::parse("580.159.04").expect("a version");
        let fd = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).expect("/dev/null");
        let error = Queue::open(&version, interface(&version).expect("known"), fd, 100).expect_err("refused");
        assert_eq!(error.kind(), Kind::Misuse);
    }

    #[test]
    fn uuids_print_in_the_usual_groups() {
        let uuid: [u8; 16] = std::array::from_fn(|i| u8::try_from(i).expect("small"));
        assert_eq!(uuid_text(&uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
