//! Carries a plan out on the device. On any error the device is as before: what was mapped is unmapped, new handles are
//! kept idle, and nothing that was allocated is touched.

use super::depot::{Depot, Piece};
use super::driver::Driver;
use super::plan::{Part, Plan};
use crate::error::{Error, Kind, Result};

/// A plan that could not be carried out.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Address space whose mapping could not be undone: it must never be used again.
    pub(crate) lost: Option<(u64, u64)>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, lost: None }
    }
}

/// Gets the handles, maps them at the plan's address and grants access. The pieces, in address order.
pub(crate) fn apply(driver: &Driver, depot: &Depot, plan: &Plan) -> Result<Vec<Piece>, Failure> {
    let mut loose = Vec::new();
    let pieces = collect(driver, depot, plan, &mut loose).inspect_err(|_| depot.keep(loose.drain(..)))?;
    let mut mapped = 0;
    let place = place(driver, plan.at, &pieces, &mut mapped);
    let Err(error) = place else { return Ok(pieces) };
    let lost = undo(driver, plan.at, mapped);
    depot.keep(loose);
    Err(Failure { error, lost })
}

/// The handles of the plan. `loose` gets those that are mapped nowhere yet.
fn collect(driver: &Driver, depot: &Depot, plan: &Plan, loose: &mut Vec<Piece>) -> Result<Vec<Piece>> {
    let mut pieces = Vec::with_capacity(plan.parts.len());
    for part in &plan.parts {
        let piece = match part {
            Part::Take(offer) => {
                if offer.home.is_none() {
                    if !depot.claim(offer.handle) {
                        let doing = "taking an idle handle that another stream took first";
                        return Err(Error::new(Kind::TimedOut, doing));
                    }
                    loose.push((offer.handle, offer.size));
                }
                (offer.handle, offer.size)
            }
            Part::New(size) => {
                let piece = (depot.create(driver, *size)?, *size);
                loose.push(piece);
                piece
            }
        };
        pieces.push(piece);
    }
    Ok(pieces)
}

fn place(driver: &Driver, at: u64, pieces: &[Piece], mapped: &mut u64) -> Result<()> {
    for (handle, size) in pieces {
        driver.map(at + *mapped, *size, *handle)?;
        *mapped += size;
    }
    driver.set_access(at, *mapped)
}

/// Unmaps what was mapped; the range, if even that fails.
fn undo(driver: &Driver, at: u64, mapped: u64) -> Option<(u64, u64)> {
    if mapped == 0 {
        return None;
    }
    match driver.unmap(at, mapped) {
        Ok(()) => None,
        Err(e) => {
            log::warn!("address range {at:#x} of {mapped} bytes is given up: {}", e.chain());
            Some((at, mapped))
        }
    }
}
