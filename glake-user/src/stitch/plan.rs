//! Where a request goes that fits in no free range, and which physical memory makes room for it: a pure value, made from
//! a view of the heap and applied by `apply`.

use crate::gpu::{Costs, Handle};

/// A place that can be made large enough: a free range (or none) beside unmapped address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Address and size of the free range; size 0 where the gap stands alone.
    pub free: (u64, u64),
    /// Address and size of the gap.
    pub gap: (u64, u64),
    /// The heap's own number of the free range, and of the gap.
    pub nodes: (u32, u32),
}

impl Spot {
    /// True where the gap follows the free range, or stands alone.
    pub fn grows_up(&self) -> bool {
        self.free.1 == 0 || self.gap.0 >= self.free.0
    }
}

/// Physical memory that may be used: mapped in a free range, or held without a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The handle.
    pub handle: Handle,
    /// Its size.
    pub size: u64,
    /// Where it is mapped and the free range it lies in; `None` for an idle handle.
    pub home: Option<Home>,
}

/// Where an offered handle is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// Which space of the stream: 0 small blocks, 1 large ones.
    pub space: u8,
    /// The address it is mapped at.
    pub address: u64,
    /// The first address of its free range.
    pub range: u64,
    /// The size of its free range.
    pub range_size: u64,
    /// The heap's own number of the free range.
    pub node: u32,
}

/// What the planner knows.
#[derive(Debug, Clone)]
pub struct View {
    /// Bytes wanted, a multiple of 512.
    pub size: u64,
    /// Which space of the stream the block goes to.
    pub space: u8,
    /// Where it could go.
    pub spots: Vec<Spot>,
    /// What can be remapped.
    pub offers: Vec<Offer>,
    /// Bytes of new physical memory that the limits leave.
    pub headroom: u64,
    /// Bytes of new physical memory to prefer over remapping.
    pub slack: u64,
    /// The unit of physical memory.
    pub granule: u64,
    /// The usual size of a new handle.
    pub handle_bytes: u64,
    /// What driver calls cost.
    pub costs: Costs,
}

/// One piece of the new mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// An offered handle, mapped a second time.
    Take(Offer),
    /// A new handle of this many bytes.
    New(u64),
}

impl Part {
    /// Its bytes.
    pub fn size(&self) -> u64 {
        match self {
            Part::Take(offer) => offer.size,
            Part::New(size) => *size,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub spot: Spot,
    /// The handles of the new mapping, in address order.
    pub parts: Vec<Part>,
    /// The first address of the new mapping.
    pub at: u64,
    /// Its bytes.
    pub mapped: u64,
    /// Modelled driver time before the block can be used.
    pub now_ns: u64,
    /// Modelled driver time for the reclaimer.
    pub later_ns: u64,
}

/// There is not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// This many bytes of physical memory are missing.
    Memory(u64),
    /// No gap is large enough: another region is needed.
    Space,
}

/// The cheapest plan: the spot with the least to add, then idle memory, then new memory within the slack, then handles of
/// the smallest free ranges, then new memory within the limits.
pub fn plan(view: &View) -> Result<Plan, Shortage> {
    let mut order: Vec<&Spot> = view.spots.iter().filter(|s| need(view, s) <= s.gap.1).collect();
    order.sort_by_key(|s| (need(view, s), s.gap.1, s.gap.0));
    let mut shortage = Shortage::Space;
    for spot in order {
        match gather(view, spot) {
            Ok(parts) => {
                let mapped: u64 = parts.iter().map(Part::size).sum();
                // Whole handles may come to more than the gap holds; a larger gap follows in the order.
                if mapped <= spot.gap.1 {
                    return Ok(finish(view, *spot, parts, mapped));
                }
            }
            Err(missing) => shortage = Shortage::Memory(missing),
        }
    }
    Err(shortage)
}

/// Bytes to map at a spot.
fn need(view: &View, spot: &Spot) -> u64 {
    view.size.saturating_sub(spot.free.1).next_multiple_of(view.granule)
}

/// The handles for a spot, or the bytes that are missing.
fn gather(view: &View, spot: &Spot) -> Result<Vec<Part>, u64> {
    let need = need(view, spot);
    let mut parts = Vec::new();
    let mut left = need;
    let usable = |o: &&Offer| o.home.is_none_or(|h| h.range != spot.free.0 || spot.free.1 == 0);
    let (idle, homed): (Vec<&Offer>, Vec<&Offer>) =
        view.offers.iter().filter(usable).partition(|o| o.home.is_none());
    take(&mut parts, &mut left, idle);
    let within = view.slack.min(view.headroom).min(left) / view.granule * view.granule;
    let mut headroom = view.headroom;
    if within > 0 {
        make(view, &mut parts, within);
        left -= within;
        headroom -= within;
    }
    let mut homed = homed;
    homed.sort_by_key(|o| o.home.map(|h| (h.range_size, h.range, u64::MAX - h.address)));
    take(&mut parts, &mut left, homed);
    if left > headroom {
        return Err(left - headroom);
    }
    make(view, &mut parts, left);
    Ok(parts)
}

/// Takes handles in order until `left` is covered, then leaves out those that turned out not to be needed.
fn take(parts: &mut Vec<Part>, left: &mut u64, offers: Vec<&Offer>) {
    let mut over = 0;
    let first = parts.len();
    for offer in offers {
        if *left == 0 {
            break;
        }
        parts.push(Part::Take(*offer));
        over = offer.size.saturating_sub(*left);
        *left = left.saturating_sub(offer.size);
    }
    let mut at = first;
    while at < parts.len() {
        let size = parts[at].size();
        if size <= over {
            over -= size;
            parts.remove(at);
        } else {
            at += 1;
        }
    }
}

/// New handles: whole ones, then ever smaller ones for the rest. The border of the block then lies among small handles,
/// and when the block is free and another one of nearly its size takes its place, little is left over that no remap can
/// use.
fn make(view: &View, parts: &mut Vec<Part>, bytes: u64) {
    let mut left = bytes;
    while left > 0 {
        let size = if left >= view.handle_bytes {
            view.handle_bytes
        } else {
            // A power of two of granules; the smallest rest is one granule.
            view.granule << (left / view.granule).ilog2()
        };
        parts.push(Part::New(size));
        left -= size;
    }
}

fn finish(view: &View, spot: Spot, parts: Vec<Part>, mapped: u64) -> Plan {
    let at = if spot.grows_up() { spot.gap.0 } else { spot.gap.0 + spot.gap.1 - mapped };
    let costs = &view.costs;
    let mut now_ns = 0;
    let mut later_ns = 0;
    for part in &parts {
        let size = part.size();
        now_ns += costs.map.at(size) + costs.access.at(size);
        match part {
            Part::New(_) => now_ns += costs.create.at(size),
            Part::Take(Offer { home: Some(_), .. }) => later_ns += costs.unmap.at(size),
            Part::Take(_) => {}
        }
    }
    Plan { spot, parts, at, mapped, now_ns, later_ns }
}
