//! Models of torch's own allocators, to play a trace into: what would have been held, at what driver cost.

mod books;
mod caching;
mod chain;
mod expandable;
pub mod sizes;
pub mod stranded;
pub mod study;

#[cfg(test)]
mod tests;

pub use caching::Caching;
pub use expandable::Expandable;

use crate::stitch::trace::Target;

/// A model that can show what it holds.
pub trait Model: Target {
    /// Everything held, by address.
    fn layout(&self) -> Vec<Region>;

    /// How often an allocation failed and cached memory was given back to the driver.
    fn retries(&self) -> u64;
}

/// A contiguous range that was taken from the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Address.
    pub address: u64,
    /// Bytes, with unmapped gaps.
    pub size: u64,
    /// The stream it belongs to.
    pub stream: u64,
    /// The pool for small requests.
    pub small: bool,
    /// A private pool.
    pub private: bool,
    /// Its blocks, in address order.
    pub cells: Vec<Cell>,
}

/// One block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Bytes.
    pub size: u64,
    /// Bytes asked for; 0 where free.
    pub requested: u64,
    /// The block's name in the trace, where it is in use.
    pub id: Option<u64>,
    /// What it is.
    pub state: Use,
}

/// What a cell is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Allocated.
    Allocated,
    /// Let go, other streams may still use it.
    Pending,
    /// Held and free.
    Free,
    /// Address space without memory.
    Unmapped,
}

impl Use {
    fn of(state: chain::State) -> Use {
        match state {
            chain::State::Used => Use::Allocated,
            chain::State::Pending => Use::Pending,
            chain::State::Free => Use::Free,
            chain::State::Unmapped => Use::Unmapped,
        }
    }
}
