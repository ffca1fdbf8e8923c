//! A copy between host and device that is under way, and the part of host memory that belongs to it meanwhile.

use std::sync::Arc;

use super::Event;
use crate::error::{Error, Kind};
use crate::sys::buffer::{Lent, Part};

/// What one copy between a part and the device moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first byte in the part.
    pub at: usize,
    /// Bytes.
    pub size: usize,
    /// The first byte's address on the device.
    pub address: u64,
}

/// A copy under way.
#[derive(Debug)]
pub struct InFlight {
    lent: Arc<Lent>,
    event: Event,
}

/// A copy that did not begin.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The part, unless the device may be using it in spite of the error: then its memory is kept for ever.
    pub part: Option<Part>,
}

/// A copy that could not be waited for.
#[derive(Debug)]
pub struct Late {
    /// Why: [`Kind::TimedOut`], or that the device is lost.
    pub error: Error,
    /// The copy, to ask again. `None` when it will never be over.
    pub flight: Option<InFlight>,
}

impl InFlight {
    /// A copy that works on `lent` and is over at `event`. For devices.
    pub(crate) fn new(lent: Arc<Lent>, event: Event) -> InFlight {
        InFlight { lent, event }
    }

    /// The mark after the copy.
    pub fn event(&self) -> Event {
        self.event
    }

    /// The part again, after the event is done: then nobody else holds it.
    pub(super) fn landed(self) -> Result<Part, Late> {
        Arc::try_unwrap(self.lent).map(Lent::back).map_err(|_| Late {
            error: Error::new(Kind::Device, "a copy whose event is done still holds its memory"),
            flight: None,
        })
    }
}

impl Refused {
    /// Refuses pieces that reach beyond the part, before the device is asked; else gives the part on.
    pub(crate) fn outside(part: Part, pieces: &[Piece]) -> Result<Part, Refused> {
        match pieces.iter().try_for_each(|p| part.holds(p.at, p.size)) {
            Ok(()) => Ok(part),
            Err(error) => Err(Refused::before(part, error)),
        }
    }

    /// The device was not asked: the part comes back.
    pub(crate) fn before(part: Part, error: Error) -> Refused {
        Refused { error, part: Some(part) }
    }

    /// The device was asked, and refused or did not answer clearly: the part is kept out of use.
    pub(crate) fn after(_kept: Lent, error: Error) -> Refused {
        Refused { error, part: None }
    }
}
