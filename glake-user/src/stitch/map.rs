//! The address space as it stands: for people, and for snapshots.

use super::heap::Heap;
use super::lanes::lock;
use super::space::State;

/// What a stretch of address space is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Handed out.
    Allocated,
    /// Mapped and free.
    Free,
    /// Handed back, other streams may still use it.
    Pending,
    /// Its memory is mapped elsewhere; it waits to be unmapped.
    Zombie,
    /// Given up after a failed driver call.
    Lost,
}

/// A stretch of address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MapRange {
    /// The stream it belongs to.
    pub stream: u64,
    /// True for the small-block pool.
    pub small: bool,
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
    /// Bytes that were asked for, where it is allocated.
    pub requested: u64,
    /// What it is.
    pub used: Use,
    /// Physical handles it touches; more than one: it is stitched.
    pub handles: u64,
}

/// A physical handle and where it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MapHandle {
    /// The driver's number.
    pub handle: u64,
    /// Its bytes.
    pub size: u64,
    /// Where it is mapped; `None` when idle.
    pub address: Option<u64>,
    /// Captured, registered or exported.
    pub pinned: bool,
}

/// The whole map.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Map {
    /// By stream and address; unmapped address space is left out.
    pub ranges: Vec<MapRange>,
    /// Every handle once.
    pub handles: Vec<MapHandle>,
}

impl Heap {
    /// The map now. Each stream's part is consistent in itself.
    pub fn map(&self) -> Map {
        let mut map = Map::default();
        for lane in self.lanes.all() {
            let lane = lock(lane);
            for (index, space) in lane.spaces.iter().enumerate() {
                for at in space.in_order() {
                    let node = space.node(at);
                    let used = match node.state {
                        State::Used => Use::Allocated,
                        State::Free | State::Kept => Use::Free,
                        State::Pending => Use::Pending,
                        State::Zombie => Use::Zombie,
                        State::Lost => Use::Lost,
                        State::Gap | State::Vacant => continue,
                    };
                    map.ranges.push(MapRange {
                        stream: lane.stream.0,
                        small: index == 0,
                        start: node.start,
                        size: node.size,
                        requested: if used == Use::Allocated { node.requested } else { 0 },
                        used,
                        handles: space.mappings.range(space.mapped_under(at)).count() as u64,
                    });
                }
                map.handles.extend(space.mappings.iter().map(|(address, m)| MapHandle {
                    handle: m.handle.0,
                    size: m.size,
                    address: Some(*address),
                    pinned: m.pins > 0,
                }));
            }
        }
        map.handles.extend(self.depot.list().into_iter().map(|(handle, size)| MapHandle {
            handle: handle.0,
            size,
            address: None,
            pinned: false,
        }));
        map
    }

    /// Checks the rules that hold between all parts: every byte has one use, every handle one home, and the handles add
    /// up to what is reserved. For tests; takes all locks.
    pub fn verify(&self) -> Result<(), String> {
        for lane in self.lanes.all() {
            for space in &lock(lane).spaces {
                space.verify()?;
            }
        }
        let map = self.map();
        let held: u64 = map.handles.iter().map(|h| h.size).sum();
        if held != self.reserved() {
            return Err(format!("{held} bytes in handles, {} reserved", self.reserved()));
        }
        let mut seen: Vec<u64> = map.handles.iter().map(|h| h.handle).collect();
        seen.sort_unstable();
        if seen.windows(2).any(|w| w[0] == w[1]) {
            return Err("a handle has two homes".to_owned());
        }
        Ok(())
    }
}
