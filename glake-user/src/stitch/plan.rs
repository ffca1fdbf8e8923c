//! Where a request goes that fits in no free range, and which physical memory makes room for it: a pure value, made from
//! a view of the heap and applied by `apply`.

use super::habits::SMALL;
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
    /// The largest size of a new handle: above the usual for large blocks.
    pub most_bytes: u64,
    /// The smallest size of a new handle, where the limits leave room for it.
    pub least_bytes: u64,
    /// Whether the addition, where it stands alone, keeps its distance from what is mapped already: so it can grow later.
    pub apart: bool,
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
    let mut parts = Vec::new();
    let mut left = need(view, spot);
    let usable = |o: &&Offer| o.home.is_none_or(|h| h.range != spot.free.0 || spot.free.1 == 0);
    // Small and large blocks leave each other's handles alone while there are others: they would take them back, and so on.
    let small = |space: u8| usize::from(space) == SMALL;
    let suits = |o: &&Offer| {
        o.home.is_none_or(|h| small(h.space) == small(view.space))
            && (!small(view.space) || o.size <= view.handle_bytes)
    };
    let (offers, foreign): (Vec<&Offer>, Vec<&Offer>) = view.offers.iter().filter(usable).partition(suits);
    let (idle, homed): (Vec<&Offer>, Vec<&Offer>) = offers.into_iter().partition(|o| o.home.is_none());
    take(&mut parts, &mut left, idle);
    let movable: u64 = homed.iter().map(|o| o.size).sum();
    // In one go, so that they are few: what the policy prefers, or what all that can be remapped leaves lacking.
    let new = view.slack.min(left).max(left.saturating_sub(movable)).min(view.headroom) / view.granule
        * view.granule;
    let made = make(view, &mut parts, new, view.headroom);
    left = left.saturating_sub(made);
    take(&mut parts, &mut left, smallest_ranges_first(homed));
    let headroom = view.headroom - made;
    if left > headroom {
        take(&mut parts, &mut left, smallest_ranges_first(foreign));
    }
    if left > headroom {
        return Err(left - headroom);
    }
    make(view, &mut parts, left, headroom);
    Ok(parts)
}

fn smallest_ranges_first(mut offers: Vec<&Offer>) -> Vec<&Offer> {
    offers.sort_by_key(|o| o.home.map(|h| (h.range_size, h.range, u64::MAX - h.address)));
    offers
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

/// A handle holds at most this part of what is still to be made, as long as it is larger than the usual: the first ones are
/// large, so that a large block needs few, and the last ones small, so that little is made too much.
const PART: u64 = 3;

/// A place of its own has this part of its size free on both sides.
const ROOM: u64 = 4;

/// New handles, the largest first. What they hold more than was needed is free address space, which the next block in that
/// place extends.
///
/// `bytes` at least, `room` at most, which is no less. The bytes made.
fn make(view: &View, parts: &mut Vec<Part>, bytes: u64, room: u64) -> u64 {
    let mut made = 0;
    while made < bytes {
        let left = bytes - made;
        let wanted = power(left / PART).min(view.most_bytes).max(view.handle_bytes);
        // The rest is a power of two of granules; the smallest rest is one granule.
        let exact = granules(view.granule, left);
        let size = if left >= wanted { wanted } else { exact.max(view.least_bytes).min(view.handle_bytes) };
        let size = if size <= room - made { size } else { exact };
        parts.push(Part::New(size));
        made += size;
    }
    made
}

/// The largest power of two of granules up to `bytes`; one at least.
pub(crate) fn granules(granule: u64, bytes: u64) -> u64 {
    granule << (bytes / granule).max(1).ilog2()
}

/// The largest power of two up to `bytes`, 0 for none.
fn power(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |log| 1 << log)
}

fn finish(view: &View, spot: Spot, parts: Vec<Part>, mapped: u64) -> Plan {
    let mut at = if spot.grows_up() { spot.gap.0 } else { spot.gap.0 + spot.gap.1 - mapped };
    let distance = (mapped / ROOM).next_multiple_of(view.granule);
    if view.apart && spot.free.1 == 0 && mapped + 2 * distance <= spot.gap.1 {
        at += distance;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const G: u64 = 2 << 20;

    fn view(size: u64) -> View {
        View {
            size,
            space: 1,
            spots: vec![Spot { free: (0, 0), gap: (1 << 40, 1 << 40), nodes: (0, 0) }],
            offers: Vec::new(),
            headroom: 1 << 40,
            slack: 0,
            granule: G,
            handle_bytes: 8 * G,
            most_bytes: 8 * G,
            least_bytes: G,
            apart: false,
            costs: Costs::H200,
        }
    }

    fn homed(handle: u64, size: u64, range: u64, range_size: u64) -> Offer {
        let home = Home { space: 1, address: range, range, range_size, node: 0 };
        Offer { handle: Handle(handle), size, home: Some(home) }
    }

    fn idle(handle: u64, size: u64) -> Offer {
        Offer { handle: Handle(handle), size, home: None }
    }

    #[test]
    fn the_range_that_lacks_least_is_extended() {
        let mut v = view(10 * G);
        v.spots.push(Spot { free: (100 * G, 4 * G), gap: (104 * G, 100 * G), nodes: (1, 2) });
        v.spots.push(Spot { free: (400 * G, 9 * G), gap: (409 * G, 100 * G), nodes: (3, 4) });
        let plan = plan(&v).unwrap();
        assert_eq!((plan.at, plan.mapped), (409 * G, G));
    }

    #[test]
    fn a_gap_below_a_range_is_filled_from_its_upper_end() {
        let mut v = view(10 * G);
        v.spots = vec![Spot { free: (400 * G, 9 * G), gap: (300 * G, 100 * G), nodes: (3, 4) }];
        let plan = plan(&v).unwrap();
        assert_eq!((plan.at, plan.mapped), (399 * G, G));
    }

    #[test]
    fn idle_memory_comes_before_remapping_and_remapping_before_growth() {
        let mut v = view(3 * G);
        v.offers = vec![homed(1, G, 50 * G, 9 * G), idle(2, G)];
        let plan = plan(&v).unwrap();
        let taken = |h| plan.parts.iter().any(|p| matches!(p, Part::Take(o) if o.handle == Handle(h)));
        assert!(taken(1) && taken(2));
        assert_eq!(plan.parts.iter().filter(|p| matches!(p, Part::New(_))).count(), 1);
    }

    #[test]
    fn within_the_slack_new_memory_is_preferred() {
        let mut v = view(G);
        v.offers = vec![homed(1, G, 50 * G, 9 * G)];
        v.slack = G;
        assert_eq!(plan(&v).unwrap().parts, vec![Part::New(G)]);
    }

    #[test]
    fn a_small_block_takes_a_large_handle_only_when_nothing_else_is_left() {
        let mut v = view(1024);
        v.space = 0;
        v.handle_bytes = G;
        v.offers = vec![homed(1, 8 * G, 50 * G, 9 * G), idle(2, 8 * G)];
        assert_eq!(plan(&v).unwrap().parts, vec![Part::New(G)]);
        v.headroom = 0;
        assert!(matches!(plan(&v).unwrap().parts[..], [Part::Take(_)]));
    }

    #[test]
    fn a_large_block_takes_the_handles_of_small_ones_only_when_nothing_else_is_left() {
        let mut v = view(8 * G);
        v.offers = (0..8).map(|n| homed(n, G, (50 + n) * G, G)).collect();
        v.offers.iter_mut().flat_map(|o| &mut o.home).for_each(|home| home.space = 0);
        assert_eq!(plan(&v).unwrap().parts, vec![Part::New(8 * G)]);
        v.headroom = 0;
        assert!(plan(&v).unwrap().parts.iter().all(|p| matches!(p, Part::Take(_))));
    }

    #[test]
    fn what_is_new_is_made_in_one_go() {
        let mut v = view(40 * G);
        v.slack = 15 * G;
        v.offers = vec![homed(1, 8 * G, 50 * G, 9 * G)];
        let sizes: Vec<u64> = plan(&v).unwrap().parts.iter().map(|p| p.size() / G).collect();
        assert_eq!(sizes, [8; 5]);
    }

    #[test]
    fn the_smallest_free_ranges_give_first() {
        let mut v = view(G);
        v.offers = vec![homed(1, G, 50 * G, 9 * G), homed(2, G, 90 * G, 2 * G)];
        let parts = plan(&v).unwrap().parts;
        assert!(matches!(parts[..], [Part::Take(o)] if o.handle == Handle(2)));
    }

    #[test]
    fn new_handles_are_whole_unless_the_limit_is_near() {
        let mut v = view(21 * G);
        v.least_bytes = 8 * G;
        assert_eq!(plan(&v).unwrap().parts, vec![Part::New(8 * G); 3]);
        v.headroom = 22 * G;
        let sizes: Vec<u64> = plan(&v).unwrap().parts.iter().map(|p| p.size() / G).collect();
        assert_eq!(sizes, [8, 8, 4, 1]);
    }

    #[test]
    fn a_large_block_is_made_of_large_handles_that_become_smaller_towards_its_end() {
        let mut v = view(200 * G);
        v.most_bytes = 32 * G;
        let sizes: Vec<u64> = plan(&v).unwrap().parts.iter().map(|p| p.size() / G).collect();
        assert_eq!(sizes, [32, 32, 32, 32, 16, 16, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn a_place_of_its_own_keeps_its_distance_and_can_grow_both_ways() {
        let mut v = view(8 * G);
        v.apart = true;
        assert_eq!(plan(&v).unwrap().at, (1 << 40) + 2 * G);
        v.spots = vec![Spot { free: (0, 0), gap: (64 * G, 9 * G), nodes: (0, 0) }];
        assert_eq!(plan(&v).unwrap().at, 64 * G, "no room for a distance");
    }

    #[test]
    fn too_little_memory_says_how_much_is_missing() {
        let mut v = view(5 * G);
        v.headroom = G;
        v.offers = vec![idle(1, G)];
        assert_eq!(plan(&v), Err(Shortage::Memory(3 * G)));
    }

    #[test]
    fn no_gap_means_that_address_space_is_needed() {
        let mut v = view(5 * G);
        v.spots.clear();
        assert_eq!(plan(&v), Err(Shortage::Space));
    }

    fn offers() -> impl Strategy<Value = Vec<Offer>> {
        prop::collection::vec((1..9_u64, 0..6_u64, any::<bool>()), 0..40).prop_map(|all| {
            let one = |(i, (size, range, is_idle)): (usize, (u64, u64, bool))| {
                let i = i as u64;
                match is_idle {
                    true => idle(i, size * G),
                    false => homed(i, size * G, range * 1000 * G, (range + 1) * 8 * G),
                }
            };
            all.into_iter().enumerate().map(one).collect()
        })
    }

    proptest! {
        #[test]
        fn every_plan_is_large_enough_and_breaks_no_rule(
            size in 1..60 * G / 512, offers in offers(), headroom in 0..50_u64, slack in 0..10_u64,
            free in 0..6_u64, room in 1..80_u64, least in 1..9_u64, most in 8..40_u64, apart in any::<bool>(),
        ) {
            let mut v = view(size * 512);
            v.least_bytes = least * G;
            v.most_bytes = most * G;
            v.apart = apart;
            v.offers = offers;
            v.headroom = headroom * G;
            v.slack = slack * G;
            v.spots.push(Spot { free: (free * 1000 * G, 8 * G), gap: (free * 1000 * G + 8 * G, room * G), nodes: (0, 0) });
            if let Ok(plan) = plan(&v) {
                let sum: u64 = plan.parts.iter().map(Part::size).sum();
                prop_assert_eq!(sum, plan.mapped);
                prop_assert!(plan.spot.free.1 + plan.mapped >= v.size);
                prop_assert!(plan.at >= plan.spot.gap.0 && plan.at + plan.mapped <= plan.spot.gap.0 + plan.spot.gap.1);
                let mut seen = HashSet::new();
                let mut new = 0;
                for part in &plan.parts {
                    match part {
                        Part::New(bytes) => new += bytes,
                        Part::Take(offer) => {
                            prop_assert!(seen.insert(offer.handle), "a handle is taken twice");
                            let own = plan.spot.free.1 > 0
                                && offer.home.is_some_and(|h| h.range == plan.spot.free.0);
                            prop_assert!(!own, "memory of the range that is extended is taken");
                        }
                    }
                }
                prop_assert!(new <= v.headroom);
            }
        }
    }
}
