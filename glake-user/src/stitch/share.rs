//! A block's physical handles, for other processes.

use std::os::fd::OwnedFd;

use super::heap::{Heap, unknown};
use super::lanes::lock;
use crate::error::{Error, Kind, Result};

/// The memory under a block.
#[derive(Debug)]
pub struct Shared {
    /// A descriptor of each handle with its bytes, in address order.
    pub parts: Vec<(OwnedFd, u64)>,
    /// Where in the first handle the address lies.
    pub offset: u64,
}

impl Heap {
    /// The handles under the block that holds `address`, from its first to its last. They are pinned until the block is freed.
    /// `Unsupported` for a block of more than `most` handles: nothing is pinned then.
    pub fn share(&self, address: u64, most: usize) -> Result<Shared> {
        let found = self.find(address).ok_or_else(|| unknown(address, "sharing"))?;
        let mut lane = lock(self.lanes.get(found.stream)?);
        let under = lane.handles_under(found.start);
        // Freed meanwhile.
        let Some(&(first, _)) = under.first() else { return Err(unknown(address, "sharing")) };
        if under.len() > most {
            let doing = format!("sharing a block of {} physical handles; {most} is the most", under.len());
            return Err(Error::new(Kind::Unsupported, doing)
                .remedy("copy it into a tensor of its own that was allocated while memory was free, or send it in parts"));
        }
        let parts = under.iter().map(|(_, m)| Ok((self.device().export(m.handle)?, m.size)));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        lane.pin_until_freed(found.start);
        Ok(Shared { parts, offset: address - first })
    }
}
