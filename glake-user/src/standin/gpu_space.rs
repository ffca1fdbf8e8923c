//! What a host GPU's work can reach: its own memory, and that of GPUs of the same host which gave it access.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::gpu_memory::GpuMemory;
use crate::error::{Error, Kind, Result};

/// How much of a copy is done at a time, and between which no memory is held.
const STEP: u64 = 64 << 10;

/// The memories of all host GPUs of one host, seen from one of them. Never are two of them locked at once.
#[derive(Clone)]
pub(super) struct Space {
    all: Arc<Vec<Mutex<GpuMemory>>>,
    own: usize,
}

impl Space {
    /// Seen from each in turn.
    pub(super) fn of(memories: Vec<GpuMemory>) -> impl Iterator<Item = Space> {
        let all: Arc<Vec<_>> = Arc::new(memories.into_iter().map(Mutex::new).collect());
        (0..all.len()).map(move |own| Space { all: Arc::clone(&all), own })
    }

    pub(super) fn ordinal(&self) -> u32 {
        self.own as u32
    }

    pub(super) fn gpus(&self) -> usize {
        self.all.len()
    }

    /// The GPU's own memory.
    pub(super) fn own(&self) -> MutexGuard<'_, GpuMemory> {
        self.at(self.own)
    }

    fn at(&self, index: usize) -> MutexGuard<'_, GpuMemory> {
        self.all[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that an address lies in. A peer's only where it gave access: a real GPU faults elsewhere.
    fn holder(&self, address: u64, size: u64) -> Result<MutexGuard<'_, GpuMemory>> {
        let own = self.own();
        if own.holds(address) {
            return Ok(own);
        }
        drop(own);
        let peers = (0..self.all.len()).filter(|index| *index != self.own);
        let found = peers.map(|index| (index, self.at(index))).find(|(_, memory)| memory.holds(address));
        match found {
            Some((_, memory)) if memory.is_open_to(self.own, address, size) => Ok(memory),
            Some((index, _)) => {
                let what = format!("host GPU {} has no access to {address:#x} of GPU {index}", self.own);
                Err(Error::new(Kind::Misuse, what))
            }
            // Nobody's: the own memory says what is wrong with it.
            None => Ok(self.own()),
        }
    }

    pub(super) fn fill(&self, address: u64, size: u64, byte: u8) -> Result<()> {
        self.holder(address, size)?.fill(address, size, byte)
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.holder(address, bytes.len() as u64)?.write(address, bytes)
    }

    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.holder(address, bytes.len() as u64)?.read(address, bytes)
    }

    pub(super) fn copy(&self, to: u64, from: u64, size: u64) -> Result<()> {
        let mut bytes = vec![0; STEP.min(size) as usize];
        let mut done = 0;
        while done < size {
            let bytes = &mut bytes[..(size - done).min(STEP) as usize];
            self.read(from + done, bytes)?;
            self.write(to + done, bytes)?;
            done += bytes.len() as u64;
        }
        Ok(())
    }
}
