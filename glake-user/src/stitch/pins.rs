//! Pins: memory that must stay where it is mapped.

use super::lane::Lane;
use super::space::Mapping;

impl Lane {
    /// The handles under a block and where they are mapped. Empty: not this lane's block.
    pub(crate) fn handles_under(&self, ptr: u64) -> Vec<(u64, Mapping)> {
        let Some((space, node)) = self.locate(ptr) else { return Vec::new() };
        let space = &self.spaces[space];
        space.mappings.range(space.mapped_under(node)).map(|(a, m)| (*a, *m)).collect()
    }

    /// Pins a block, once however often it is asked for; its free takes the pin back.
    pub(crate) fn pin_until_freed(&mut self, ptr: u64) {
        let Some((space, node)) = self.locate(ptr) else { return };
        if !std::mem::replace(&mut self.spaces[space].nodes[node as usize].lent, true) {
            self.set_pins(space, node, true);
        }
    }

    #[cold]
    pub(crate) fn take_back_lent(&mut self, space: usize, node: u32) {
        self.spaces[space].nodes[node as usize].lent = false;
        self.set_pins(space, node, false);
    }

    /// Pins or unpins the handles under a block. False: not this lane's block.
    pub(crate) fn pin(&mut self, ptr: u64, on: bool) -> bool {
        let Some((space, node)) = self.locate(ptr) else { return false };
        self.set_pins(space, node, on);
        true
    }

    fn set_pins(&mut self, space: usize, node: u32, on: bool) {
        let space = &mut self.spaces[space];
        let under = space.mapped_under(node);
        for (_, mapping) in space.mappings.range_mut(under) {
            mapping.pins = if on { mapping.pins + 1 } else { mapping.pins.saturating_sub(1) };
        }
    }
}
