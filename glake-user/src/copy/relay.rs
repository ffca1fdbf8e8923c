//! A second way to the GPU's memory: over the link of a peer GPU into a slot of its memory, and from there between the GPUs.
//!
//! For copies that one link holds up. The peer gives a few parts' worth of memory and its copy engines; what is under way there
//! is in order within a slot's stream, so no wait on the host lies between the two steps.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FlockOperation;

use super::room::Room;
use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, Event, InFlight, Piece, Refused, Stream};
use crate::sys::buffer::Part;

/// A peer GPU that relays.
pub struct Relay {
    device: Arc<dyn Device>,
    slots: Mutex<Vec<Slot>>,
    count: usize,
    slot_size: usize,
    /// Kept until all work in it is over; for ever if that is never known.
    room: Option<Room>,
    _lease: Option<File>,
}

/// A part's worth of the peer's memory, and the stream of all work on it.
#[derive(Debug, Clone, Copy)]
struct Slot {
    stream: Stream,
    address: u64,
}

impl Slot {
    /// Pieces of a part, in the slot at the same places.
    fn hold(&self, pieces: &[Piece]) -> Vec<Piece> {
        pieces.iter().map(|p| Piece { address: self.address + p.at as u64, ..*p }).collect()
    }
}

/// A part under way over a peer.
#[derive(Debug)]
pub struct Relayed {
    flight: InFlight,
    /// The end of the second step; `None`: the flight is the second step.
    end: Option<Event>,
    slot: Slot,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Relay(GPU {})", self.device.ordinal())
    }
}

impl Relay {
    /// `slots` slots of `slot_size` bytes on `device`, for memory of `target` that is given access from now on:
    /// [`Device::set_access`] afterwards. One relaying process per GPU and host.
    ///
    /// Errors: `Unsupported` where the GPUs do not reach each other, `Exhausted` when the peer has no memory left or relays for
    /// another process.
    pub fn new(
        device: Arc<dyn Device>,
        target: &dyn Device,
        slots: usize,
        slot_size: usize,
    ) -> Result<Relay> {
        target.enable_peer(device.ordinal())?;
        let lease = device.pci_address().map(|pci| lease(&pci)).transpose()?;
        let room = Room::new(&device, slots as u64 * slot_size as u64)?;
        let mut made = Vec::new();
        for index in 0..slots as u64 {
            made.push(Slot {
                stream: device.create_stream()?,
                address: room.address() + index * slot_size as u64,
            });
        }
        let (count, room) = (made.len(), Some(room));
        Ok(Relay { device, slots: Mutex::new(made), count, slot_size, room, _lease: lease })
    }

    /// The peer.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Bytes of a slot: larger parts cannot be relayed.
    pub fn slot_size(&self) -> usize {
        self.slot_size
    }

    fn slot(&self) -> Option<Slot> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give(&self, slot: Slot) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }

    /// Whether a part of `size` bytes could be sent now.
    pub(super) fn is_free(&self, size: usize) -> bool {
        size <= self.slot_size && !self.slots.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Begins to copy pieces of a part to the target. The part comes back with [`Refused`], unless the peer may be using it.
    pub(super) fn upload(&self, part: Part, pieces: &[Piece]) -> Result<Relayed, Refused> {
        let Some(slot) = self.slot() else { return Err(Refused::before(part, self.busy())) };
        let held = slot.hold(pieces);
        let flight = match self.device.upload(slot.stream, part, &held) {
            Ok(flight) => flight,
            Err(refused) => {
                // With the part, the slot is known to be free.
                if refused.part.is_some() {
                    self.give(slot);
                }
                return Err(refused);
            }
        };
        let mut both = pieces.iter().zip(&held);
        let on = |(p, held): (&Piece, &Piece)| {
            self.device.copy(slot.stream, p.address, held.address, p.size as u64)
        };
        match both.try_for_each(on).and_then(|()| self.device.record(slot.stream)) {
            Ok(end) => Ok(Relayed { flight, end: Some(end), slot }),
            // The first step is under way, the second will not be. The slot stays out of use.
            Err(error) => Err(Refused { error, part: self.device.collect(flight, SECOND_NS).ok() }),
        }
    }

    /// Begins to copy pieces of the target's memory into a part.
    pub(super) fn download(&self, part: Part, pieces: &[Piece]) -> Result<Relayed, Refused> {
        let Some(slot) = self.slot() else { return Err(Refused::before(part, self.busy())) };
        let held = slot.hold(pieces);
        let mut both = pieces.iter().zip(&held);
        let here = |(p, held): (&Piece, &Piece)| {
            self.device.copy(slot.stream, held.address, p.address, p.size as u64)
        };
        if let Err(error) = both.try_for_each(here) {
            return Err(Refused::before(part, error));
        }
        let flight = self.device.download(slot.stream, part, &held)?;
        Ok(Relayed { flight, end: None, slot })
    }

    /// Whether a part is through.
    pub(super) fn is_done(&self, sent: &Relayed) -> Result<bool> {
        self.device.is_done(sent.end.unwrap_or(sent.flight.event()))
    }

    /// Waits until a part is through, and gives it back. After an error the slot stays out of use.
    pub(super) fn land(&self, sent: Relayed, timeout_ns: u64) -> Result<Part> {
        if let Some(end) = sent.end {
            self.device.wait(end, timeout_ns)?;
            self.device.recycle(end);
        }
        let part = self.device.collect(sent.flight, timeout_ns).map_err(|late| late.error)?;
        self.give(sent.slot);
        Ok(part)
    }

    fn busy(&self) -> Error {
        Error::new(Kind::Exhausted, format!("all slots of the relaying GPU {}", self.device.ordinal()))
    }
}

/// How long a step that was begun is waited for when the next one failed.
const SECOND_NS: u64 = 1_000_000_000;

impl Drop for Relay {
    fn drop(&mut self) {
        let slots = std::mem::take(self.slots.get_mut().unwrap_or_else(PoisonError::into_inner));
        let all = slots.len() == self.count;
        for slot in slots {
            let _ = self.device.destroy_stream(slot.stream);
        }
        // A slot that is missing may still be written to: its memory must not become somebody else's.
        if let (false, Some(room)) = (all, self.room.take()) {
            Box::leak(Box::new(room));
        }
    }
}

/// The right to relay over a GPU, for this process alone, until the file is closed.
fn lease(pci: &str) -> Result<File> {
    let path = PathBuf::from(format!("/dev/shm/glake-relay.{pci}"));
    let open = || File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(&path);
    let make = || {
        File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_NOFOLLOW)
            .mode(0o644)
            .open(&path)
    };
    // Somebody may be first between the two.
    let file = open().or_else(|_| make()).or_else(|_| open());
    let file = file.map_err(|e| Error::os(format!("opening {}", path.display()), e))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| {
        let what = format!("another process of this host relays over GPU {pci} ({})", path.display());
        Error::new(Kind::Exhausted, what).because(e)
    })?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_relays_over_a_gpu() {
        let gpu = format!("test-{}", std::process::id());
        let held = lease(&gpu).unwrap();
        let refused = lease(&gpu).unwrap_err();
        assert_eq!(refused.kind(), Kind::Exhausted);
        assert!(refused.chain().contains(&gpu), "{}", refused.chain());
        drop(held);
        lease(&gpu).unwrap();
        std::fs::remove_file(format!("/dev/shm/glake-relay.{gpu}")).unwrap();
    }
}
