//! Counters of address spaces and GPUs become readings.

use crate::{
    error::{Error, Kind, Result},
    events::{
        ebpf::{attach::Loaded, cgroups::Cgroups},
        sample::{Histogram, Uvm, UvmAccess, UvmGpu, UvmMoved, UvmSpace, trim},
        uvm::{entry::FatalReason, queue::uuid_text},
    },
    sys::bpf::Words,
};
use aya::maps::{HashMap as BpfHash, MapData, Queue};
use glake_common::{
    hist::SLOTS,
    table,
    uvm::{BATCH_SLOTS, CAUSES, CellInfo, CellKey, MANY, Space, WAYS, gpu, moves, word},
};
use std::{
    collections::{BTreeMap, HashMap},
    mem::{offset_of, size_of},
};

const INFO: usize = size_of::<CellInfo>() / 8;
const TAKEN: usize = offset_of!(CellInfo, taken) / 8;
/// Words of `GpuInfo`: taken, UUID, processor.
const GPU_INFO: usize = 4;

const CAUSE_WORDS: [&str; CAUSES] = ["on_demand", "prefetch", "eviction", "user", "access_counters"];
const WAY_WORDS: [&str; WAYS] = ["to_gpu", "to_cpu", "peer", "host"];

/// Which probes are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct On {
    pub(crate) notify: bool,
    pub(crate) service: bool,
    pub(crate) batches: bool,
    pub(crate) replays: bool,
    pub(crate) evictions: bool,
    pub(crate) thrashing: bool,
    pub(crate) throttling: bool,
    pub(crate) fatal: bool,
}

/// Who made an address space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Who {
    tgid: u32,
    cgroup: u64,
    comm: String,
}

/// The maps of the group.
pub(crate) struct Uvms {
    cells: u32,
    gpus: usize,
    shards: usize,
    info: Words,
    counters: Words,
    gpu_info: Words,
    gpu_counters: Words,
    spaces: BpfHash<MapData, u64, Space>,
    index: BpfHash<MapData, CellKey, u32>,
    free: Queue<MapData, u32>,
    /// Cells whose address space is gone, with what they had counted when that was seen.
    leaving: HashMap<u32, u64>,
    /// Serial numbers given out by earlier lives of the module: numbers go on.
    earlier: u64,
    /// Which of the driver's numbers belongs to which UUID.
    by_processor: HashMap<u32, String>,
}

impl Uvms {
    pub(crate) fn new(loaded: &mut Loaded, earlier: u64) -> Result<Uvms> {
        let sizes = loaded.sizes;
        let (cells, shards) = (sizes.uvm_cells, sizes.shards as usize);
        let gpus = sizes.uvm_gpu_sets as usize * table::WAYS;
        let missing = |map: &str| Error::new(Kind::Unsupported, format!("the eBPF object has no map {map}"));
        let mut take = |map: &'static str| loaded.ebpf.take_map(map).ok_or_else(|| missing(map));
        let spaces = BpfHash::try_from(take("UVM_SPACES")?).map_err(|e| missing("UVM_SPACES").because(e))?;
        let index = BpfHash::try_from(take("UVM_INDEX")?).map_err(|e| missing("UVM_INDEX").because(e))?;
        let mut free: Queue<MapData, u32> =
            Queue::try_from(take("UVM_FREE")?).map_err(|e| missing("UVM_FREE").because(e))?;
        for cell in 0..cells {
            free.push(cell, 0)
                .map_err(|e| Error::new(Kind::Io, "filling the queue of free UVM cells").because(e))?;
        }
        Ok(Uvms {
            cells,
            gpus,
            shards,
            info: loaded.words("UVM_INFO", u64::from(cells) * INFO as u64)?,
            counters: loaded.words("UVM_CELLS", u64::from(cells) * (shards * word::COUNT) as u64)?,
            gpu_info: loaded.words("UVM_GPUS", (gpus * GPU_INFO) as u64)?,
            gpu_counters: loaded.words("UVM_GPU_CELLS", (gpus * shards * gpu::COUNT) as u64)?,
            spaces,
            index,
            free,
            leaving: HashMap::new(),
            earlier,
            by_processor: HashMap::new(),
        })
    }

    /// The UUID of a processor, where a replay has told.
    pub(crate) fn uuid(&self, processor: u32) -> Option<String> {
        self.by_processor.get(&processor).cloned()
    }

    /// Whether a process has an address space now, as far as may be asked.
    pub(crate) fn in_use(&self) -> bool {
        self.spaces.keys().next().is_some()
    }

    /// Everything counted so far.
    pub(crate) fn read(&mut self, on: On, cgroups: &mut Cgroups) -> Uvm {
        let gpus = self.gpus(on);
        let mut spaces = Vec::new();
        for cell in 0..self.cells {
            let at = cell as usize * INFO;
            if self.info.load(at + TAKEN) != 1 {
                continue;
            }
            let counts = self.cell(cell);
            let who = self.who(cell);
            if counts.iter().any(|n| *n > 0) {
                let processor = self.info.load(at + 1) as u32;
                let mut space = space(&counts, on, processor);
                space.serial = self.earlier + self.info.load(at);
                space.uuid = self.uuid(processor);
                space.tgid = (who.tgid != 0).then_some(who.tgid);
                space.comm = who.comm;
                space.cgroup_path = cgroups.path(who.cgroup);
                spaces.push(space);
            }
            self.age(cell, counts.iter().fold(0u64, |a, n| a.wrapping_add(*n)));
        }
        spaces.sort_by_key(|s| (s.serial, s.processor));
        Uvm { gpus, spaces }
    }

    /// The process of a cell: as known when it was taken, else as known by now.
    fn who(&self, cell: u32) -> Who {
        let [serial, _, address, cgroup, who, comm_a, comm_b] = self.info.array(cell as usize * INFO);
        let bytes: Vec<u8> = comm_a.to_ne_bytes().into_iter().chain(comm_b.to_ne_bytes()).collect();
        let known = Who { tgid: who as u32, cgroup, comm: text(&bytes) };
        if known.tgid != 0 {
            return known;
        }
        match self.spaces.get(&address, 0) {
            Ok(space) if space.serial == serial => {
                Who { tgid: space.tgid, cgroup: space.cgroup, comm: text(&space.comm) }
            }
            _ => known,
        }
    }

    fn cell(&self, cell: u32) -> [u64; word::COUNT] {
        let mut sum = [0u64; word::COUNT];
        for shard in 0..self.shards {
            let at = (cell as usize * self.shards + shard) * word::COUNT;
            for (i, total) in sum.iter_mut().enumerate() {
                *total = total.wrapping_add(self.counters.load(at + i));
            }
        }
        sum
    }

    /// Gives back the cell of an address space that is gone: at the second reading that finds it unchanged.
    fn age(&mut self, cell: u32, sum: u64) {
        let [serial, _, address] = self.info.array(cell as usize * INFO);
        let alive = match self.spaces.get(&address, 0) {
            Ok(space) => space.serial == serial,
            Err(aya::maps::MapError::KeyNotFound) => false,
            // Not allowed to ask: it stays.
            Err(_) => true,
        };
        if alive {
            self.leaving.remove(&cell);
            return;
        }
        if self.leaving.insert(cell, sum) != Some(sum) {
            return;
        }
        self.leaving.remove(&cell);
        let [serial, processor] = self.info.array(cell as usize * INFO);
        let _ = self.index.remove(&CellKey { serial, processor: processor as u32, spare: 0 });
        for i in 0..self.shards * word::COUNT {
            self.counters.store(cell as usize * self.shards * word::COUNT + i, 0);
        }
        for i in 0..INFO {
            self.info.store(cell as usize * INFO + i, 0);
        }
        // A refusal leaves the cell unused for ever: a smaller pool, nothing worse.
        let _ = self.free.push(cell, 0);
    }

    /// Every GPU seen.
    fn gpus(&mut self, on: On) -> Vec<UvmGpu> {
        let mut gpus = Vec::new();
        for place in 0..self.gpus {
            let [taken, uuid_a, uuid_b, processor] = self.gpu_info.array(place * GPU_INFO);
            if taken != 1 {
                continue;
            }
            let uuid = uuid_of(uuid_a, uuid_b);
            // 0: not seen yet.
            if let (Some(uuid), Some(number)) = (&uuid, processor.checked_sub(1))
                && processor != MANY
                && let Ok(number) = u32::try_from(number)
            {
                self.by_processor.insert(number, uuid.clone());
            }
            gpus.push(self.gpu(place, uuid, on));
        }
        gpus
    }

    fn gpu(&self, place: usize, uuid: Option<String>, on: On) -> UvmGpu {
        let sum = |which: usize| -> u64 {
            let copies = (0..self.shards).map(|s| (place * self.shards + s) * gpu::COUNT + which);
            copies.map(|at| self.gpu_counters.load(at)).fold(0, u64::wrapping_add)
        };
        let row = |from: usize, len: usize| {
            let mut row: Vec<u64> = (from..from + len).map(sum).collect();
            trim(&mut row);
            row
        };
        UvmGpu {
            uuid,
            service: on
                .service
                .then(|| Histogram { slots: row(gpu::SERVICE, SLOTS), sum_ns: sum(gpu::SERVICE_NS) }),
            batches: on.batches.then(|| row(gpu::BATCHES, BATCH_SLOTS)),
            batched_faults: on.batches.then(|| sum(gpu::BATCHED)),
            replays: on.replays.then(|| sum(gpu::REPLAYS)),
            evictions: on.evictions.then(|| sum(gpu::EVICTIONS)),
        }
    }
}

/// All zero is what the driver's structures hold before a GPU is ready, and our mark for "not told".
fn uuid_of(a: u64, b: u64) -> Option<String> {
    let mut uuid = [0u8; 16];
    uuid[..8].copy_from_slice(&a.to_ne_bytes());
    uuid[8..].copy_from_slice(&b.to_ne_bytes());
    (uuid != [0; 16]).then(|| uuid_text(&uuid))
}

fn text(bytes: &[u8]) -> String {
    crate::events::ebpf::record::text(bytes)
}

/// The numbers of one cell.
fn space(counts: &[u64; word::COUNT], on: On, processor: u32) -> UvmSpace {
    let fault = |i: usize| counts[word::GPU_FAULTS + i];
    // Reasons 0 and 7 are both "other".
    let mut fatal: BTreeMap<&str, u64> = BTreeMap::new();
    for n in 0..8u8 {
        *fatal.entry(FatalReason::of(n).word()).or_default() += counts[word::FATAL + usize::from(n)];
    }
    let mut moved = Vec::new();
    for (cause, cause_word) in CAUSE_WORDS.iter().enumerate() {
        for (way, way_word) in WAY_WORDS.iter().enumerate() {
            let at = moves(cause, way);
            if counts[at] > 0 {
                moved.push(UvmMoved {
                    cause: (*cause_word).to_owned(),
                    direction: (*way_word).to_owned(),
                    count: counts[at],
                    bytes: counts[at + 1],
                });
            }
        }
    }
    UvmSpace {
        processor,
        gpu_faults: UvmAccess { prefetch: fault(0), read: fault(1), write: fault(2), atomic: fault(3) },
        duplicates: counts[word::DUPLICATES],
        cpu_faults: [counts[word::CPU_FAULTS], counts[word::CPU_FAULTS + 1]],
        thrashing: on.thrashing.then(|| counts[word::THRASHING]),
        throttled_ns: on.throttling.then(|| counts[word::THROTTLED_NS]),
        evictions: (on.evictions && on.notify).then(|| counts[word::EVICTIONS]),
        fatal: on
            .fatal
            .then(|| fatal.into_iter().filter(|(_, n)| *n > 0).map(|(r, n)| (r.to_owned(), n)).collect()),
        moved,
        ..UvmSpace::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_cell_find_their_places() {
        let mut counts = [0u64; word::COUNT];
        for (i, n) in counts.iter_mut().enumerate() {
            *n = 1000 + i as u64;
        }
        let on = On {
            notify: true,
            thrashing: true,
            throttling: true,
            fatal: true,
            evictions: true,
            ..On::default()
        };
        let s = space(&counts, on, 3);
        let access = UvmAccess { prefetch: 1000, read: 1001, write: 1002, atomic: 1003 };
        assert_eq!((s.gpu_faults, s.cpu_faults, s.duplicates), (access, [1004, 1005], 1006));
        assert_eq!((s.thrashing, s.throttled_ns), (Some(1007), Some(1009)));
        assert_eq!(s.evictions, Some(1018));
        assert_eq!(s.moved.len(), CAUSES * WAYS);
        let of = |cause: &str, way: &str| {
            let found = s.moved.iter().find(|m| m.cause == cause && m.direction == way);
            found.map(|m| (m.count, m.bytes))
        };
        assert_eq!(of("on_demand", "to_gpu"), Some((1019, 1020)));
        assert_eq!(of("access_counters", "host"), Some((1057, 1058)));
    }

    #[test]
    fn what_is_not_watched_is_unknown_and_not_zero() {
        let s = space(&[0; word::COUNT], On::default(), 1);
        assert_eq!((s.thrashing, s.throttled_ns, s.evictions, s.fatal), (None, None, None, None));
        assert!(s.moved.is_empty());
    }

    #[test]
    fn a_uuid_of_zeros_is_none() {
        assert_eq!(uuid_of(0, 0), None);
        let a = u64::from_ne_bytes([0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7]);
        let b = u64::from_ne_bytes([0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf]);
        assert_eq!(uuid_of(a, b).as_deref(), Some("GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"));
    }
}
