//! Device memory for one copy: a range of its own, given back when dropped.

use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, Handle};

/// A range of device memory.
pub struct Room {
    device: Arc<dyn Device>,
    address: u64,
    size: u64,
    handles: Vec<Handle>,
    mapped: u64,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Room({} bytes at {:#x})", self.size, self.address)
    }
}

/// The size of a handle: few driver calls, and no need for much memory in one piece.
const HANDLE: u64 = 1 << 30;

impl Room {
    /// At least `size` bytes. `Exhausted` when the device has not as many; nothing is kept then.
    pub fn new(device: &Arc<dyn Device>, size: u64) -> Result<Room> {
        let unit = device.granularity()?.recommended.max(1);
        let free = device.memory()?.free;
        let size = size.max(1).next_multiple_of(unit);
        if size > free {
            let what = format!("taking {size} bytes of GPU {}, which has {free} free", device.ordinal());
            return Err(Error::new(Kind::Exhausted, what));
        }
        let address = device.reserve(size)?;
        let mut room = Room { device: Arc::clone(device), address, size, handles: Vec::new(), mapped: 0 };
        while room.mapped < size {
            let piece = HANDLE.next_multiple_of(unit).min(size - room.mapped);
            let handle = device.create(piece)?;
            room.handles.push(handle);
            device.map(address + room.mapped, piece, handle)?;
            room.mapped += piece;
        }
        device.set_access(address, size)?;
        Ok(room)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Room {
    /// The caller has waited for every copy into it. What the driver refuses here, it takes back at the process's end.
    fn drop(&mut self) {
        if self.mapped > 0 {
            let _ = self.device.unmap(self.address, self.mapped);
        }
        for handle in self.handles.drain(..) {
            let _ = self.device.release(handle);
        }
        let _ = self.device.unreserve(self.address, self.size);
    }
}
