//! NVMe counters become readings: per controller, queue and opcode.

use super::{attach::Loaded, devices::Controller};
use crate::{
    error::Result,
    events::sample::{Histogram, NvmeCommands, NvmeController, NvmeErrors, NvmeQueue},
    sys::bpf::Words,
};
use glake_common::{
    hist::SLOTS,
    nvme::{COUNTER_WORDS, DEPTHS, NAMESPACES, SHIFTS, kind, moves_blocks, split_key},
    table,
};
use std::collections::BTreeMap;

/// Words of one cell.
const CELL: usize = COUNTER_WORDS + SLOTS;

/// The maps of the NVMe group.
pub(crate) struct Nvmes {
    places: usize,
    keys: Words,
    cells: Words,
    depths: Words,
    shifts: Words,
}

/// Which probes are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct On {
    pub(crate) commands: bool,
    pub(crate) queues: bool,
    pub(crate) asynchronous: bool,
}

impl Nvmes {
    pub(crate) fn new(loaded: &Loaded) -> Result<Nvmes> {
        let places = loaded.sizes.nvme_sets as usize * table::WAYS;
        Ok(Nvmes {
            places,
            keys: loaded.words("NVME_KEYS", places as u64)?,
            cells: loaded.words("NVME_CELLS", (places * CELL) as u64)?,
            depths: loaded.words("NVME_DEPTHS", u64::from(DEPTHS))?,
            shifts: loaded.words("NVME_SHIFTS", u64::from(SHIFTS))?,
        })
    }

    /// Tells the programs what sysfs knows: queue depths and block sizes.
    pub(crate) fn tell(&self, controllers: &BTreeMap<u32, Controller>) {
        for (number, controller) in controllers.iter().filter(|(n, _)| **n < DEPTHS) {
            self.depths.store(*number as usize, u64::from(controller.depth.unwrap_or(0)));
            for (nsid, shift) in controller.shifts.iter().filter(|(n, _)| **n < NAMESPACES) {
                self.shifts.store((number * NAMESPACES + nsid) as usize, u64::from(*shift));
            }
        }
    }

    /// Every controller that sysfs shows or a command named.
    pub(crate) fn read(&self, controllers: &BTreeMap<u32, Controller>, on: On) -> Vec<NvmeController> {
        let mut out: BTreeMap<u32, NvmeController> =
            controllers.iter().map(|(n, c)| (*n, empty(*n, c.pci.clone(), on))).collect();
        for place in 0..self.places {
            let key = self.keys.load(place);
            if key == 0 {
                continue;
            }
            let (kind, number, queue, value) = split_key(key);
            let controller = out.entry(number).or_insert_with(|| empty(number, None, on));
            let depth = controllers.get(&number).and_then(|c| c.depth);
            self.add(controller, place, (kind, queue, value), depth);
        }
        let mut list: Vec<_> = out.into_values().collect();
        for controller in &mut list {
            controller.commands.sort_by_key(|c| (c.queue, c.opcode));
            controller.errors.sort_by_key(|e| (e.sct, e.sc));
        }
        list
    }

    fn add(&self, controller: &mut NvmeController, place: usize, key: (u64, u16, u16), depth: Option<u32>) {
        let (kind, queue, value) = key;
        let at = place * CELL;
        let [completed, bytes, retries, untold, sum_ns] = self.cells.array(at);
        match kind {
            kind::COMMANDS => {
                let slots = self.cells.array::<SLOTS>(at + COUNTER_WORDS).to_vec();
                let told = queue != 0 && moves_blocks(value.into()) && untold == 0;
                controller.commands.push(NvmeCommands {
                    queue,
                    opcode: value as u8,
                    completed,
                    bytes: told.then_some(bytes),
                    latency: Histogram::new(slots, sum_ns),
                });
                controller.retries = Some(controller.retries.unwrap_or(0) + retries);
            }
            kind::STATUS => {
                let (sct, sc) = ((value >> 8) as u8 & 7, value as u8);
                controller.errors.push(NvmeErrors { sct, sc, count: completed });
            }
            kind::QUEUE => {
                // The largest fill of this interval; the next one starts at 0.
                self.cells.store(at + 1, 0);
                let max_fill = u32::try_from(bytes).unwrap_or(u32::MAX);
                // NVME_AQ_DEPTH of drivers/nvme/host/nvme.h.
                let depth = if queue == 0 { Some(32) } else { depth };
                let fill = NvmeQueue { queue, completed, max_fill, depth };
                controller.queues.get_or_insert_default().push(fill);
            }
            kind::ASYNC => controller.async_events = Some(completed),
            _ => {}
        }
    }
}

fn empty(number: u32, pci: Option<String>, on: On) -> NvmeController {
    NvmeController {
        controller: format!("nvme{number}"),
        pci,
        retries: on.commands.then_some(0),
        async_events: on.asynchronous.then_some(0),
        queues: on.queues.then(Vec::new),
        ..NvmeController::default()
    }
}
