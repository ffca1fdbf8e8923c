//! Block counters become readings: per device and operation, and per workload.

use super::{
    attach::Loaded,
    cgroups::Cgroups,
    devices::Names,
    sizes::{CELL_SHARDS, Sizes},
};
use crate::{
    error::Result,
    events::sample::{BlockDevice, BlockOperation, Histogram, Operation, Owner, OwnerDeviceIo, OwnerIo},
    sys::bpf::Words,
};
use aya::maps::{HashMap as BpfHash, MapData, Queue};
use glake_common::{
    block::{COUNTER_WORDS, OwnerKey, op},
    hist::SLOTS,
    table,
};
use std::collections::{BTreeMap, HashMap};

/// Words of one copy of the counters.
const COUNTERS: usize = COUNTER_WORDS + 2 * SLOTS;
/// Words of a cell and of what is known about it.
const CELL: usize = 4;
const INFO: usize = 8;
const TAKEN: usize = 4;

/// A cell that nothing was added to for so long is given back: 10 minutes.
const IDLE_NS: u64 = 600_000_000_000;
/// From taking a cell out of the index to giving it to another: no request in flight names it any more.
const QUARANTINE_NS: u64 = 60_000_000_000;

/// The operation of an index.
pub(crate) fn operation(index: u32) -> Operation {
    match index {
        op::READ => Operation::Read,
        op::WRITE => Operation::Write,
        op::FLUSH => Operation::Flush,
        op::DISCARD => Operation::Discard,
        _ => Operation::Other,
    }
}

/// What is kept about a taken cell.
#[derive(Debug, Clone, Copy, Default)]
struct Idle {
    completed: u64,
    bytes: u64,
    since_ns: u64,
    /// Taken out of the index then.
    leaving_ns: Option<u64>,
}

/// The maps of the block group.
pub(crate) struct Blocks {
    sizes: Sizes,
    devices: Words,
    device_blocks: Words,
    counters: Words,
    info: Words,
    cells: Words,
    index: BpfHash<MapData, OwnerKey, u32>,
    free: Queue<MapData, u32>,
    idle: HashMap<u32, Idle>,
    /// The programs tell kernel threads from tasks; otherwise this does.
    pub(crate) tells_kernel: bool,
    /// Which counters mean something.
    pub(crate) merges: bool,
    pub(crate) requeues: bool,
}

/// All copies of one operation's counters, added up.
struct Totals([u64; COUNTERS]);

impl Totals {
    fn histogram(&self, at: usize, sum: usize) -> Histogram {
        Histogram::new(self.0[at..at + SLOTS].to_vec(), self.0[sum])
    }
}

impl Blocks {
    pub(crate) fn new(loaded: &mut Loaded, tells_kernel: bool) -> Result<Blocks> {
        use crate::error::{Error, Kind};
        let sizes = loaded.sizes;
        let words = |map: &'static str| {
            let (_, n, each) = sizes.entries().into_iter().find(|(m, ..)| *m == map).unwrap_or((map, 0, 0));
            loaded.words(map, u64::from(n) * each / 8)
        };
        let (devices, device_blocks, counters) =
            (words("DEVICES")?, words("DEVICE_BLOCKS")?, words("BLOCKS")?);
        let (info, cells) = (words("CELL_INFO")?, words("CELLS")?);
        let bad = |map: &str| Error::new(Kind::Unsupported, format!("the eBPF object has no map {map}"));
        let map = loaded.ebpf.take_map("OWNERS").ok_or_else(|| bad("OWNERS"))?;
        let index = BpfHash::try_from(map).map_err(|e| bad("OWNERS").because(e))?;
        let map = loaded.ebpf.take_map("FREE_CELLS").ok_or_else(|| bad("FREE_CELLS"))?;
        let mut free: Queue<MapData, u32> = Queue::try_from(map).map_err(|e| bad("FREE_CELLS").because(e))?;
        for cell in 0..sizes.cells {
            free.push(cell, 0)
                .map_err(|e| Error::new(Kind::Io, "filling the queue of free cells").because(e))?;
        }
        Ok(Blocks {
            sizes,
            devices,
            device_blocks,
            counters,
            info,
            cells,
            index,
            free,
            idle: HashMap::new(),
            tells_kernel,
            merges: false,
            requeues: false,
        })
    }

    /// Every device seen, as (index, major, minor).
    fn seen(&self) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        (0..self.sizes.device_sets * table::WAYS as u32).filter_map(|i| {
            let key = self.devices.load(i as usize);
            (key != 0).then_some((i, (key >> 32) as u32, (key as u32) >> 1))
        })
    }

    /// The name of a device by its index.
    pub(crate) fn name(&self, index: u32, names: &mut Names) -> Option<String> {
        let key = self.devices.load(index as usize);
        (key != 0).then(|| names.head((key >> 32) as u32, (key as u32) >> 1).0)
    }

    fn totals(&self, device: u32, operation: u32) -> Option<Totals> {
        let block = self.device_blocks.load((device * 8 + operation) as usize);
        let first = usize::try_from(block.checked_sub(1)?).ok()? * self.sizes.shards as usize;
        let mut totals = [0u64; COUNTERS];
        for shard in first..first + self.sizes.shards as usize {
            for (i, total) in totals.iter_mut().enumerate() {
                *total = total.wrapping_add(self.counters.load(shard * COUNTERS + i));
            }
        }
        Some(Totals(totals))
    }

    /// Per device and operation, and what of it belongs to no single workload.
    pub(crate) fn read(&self, names: &mut Names) -> (Vec<BlockDevice>, Vec<OwnerIo>) {
        let mut devices: BTreeMap<String, BlockDevice> = BTreeMap::new();
        let mut shared = Vec::new();
        let mut unknown = Vec::new();
        let seen: Vec<_> = self.seen().collect();
        for (index, major, minor) in seen {
            let (name, controller) = names.head(major, minor);
            let device = devices.entry(name.clone()).or_insert_with(|| self.device(&name, names));
            if let Some(controller) = controller
                && !device.controllers.contains(&controller)
            {
                device.controllers.push(controller);
            }
            for op in 0..op::COUNT {
                let Some(totals) = self.totals(index, op) else { continue };
                add_operation(device, operation(op), &totals);
                add_io(&mut shared, &name, operation(op), [totals.0[5], totals.0[6], totals.0[7]]);
                add_io(&mut unknown, &name, operation(op), [totals.0[8], totals.0[9], totals.0[10]]);
            }
        }
        let owners = [(Owner::Shared, shared), (Owner::Unknown, unknown)]
            .into_iter()
            .filter(|(_, io)| !io.is_empty())
            .map(|(owner, io)| OwnerIo { owner, cgroup_path: None, io })
            .collect();
        (devices.into_values().collect(), owners)
    }

    fn device(&self, name: &str, names: &Names) -> BlockDevice {
        BlockDevice {
            device: name.to_owned(),
            controllers: names.controllers(name),
            in_flight: names.in_flight(name),
            requeues: self.requeues.then_some(0),
            merges: self.merges.then_some(0),
            operations: Vec::new(),
        }
    }

    /// Per workload.
    pub(crate) fn owners(&mut self, names: &mut Names, cgroups: &mut Cgroups, now_ns: u64) -> Vec<OwnerIo> {
        let mut owners: BTreeMap<Owner, Vec<OwnerDeviceIo>> = BTreeMap::new();
        for cell in 0..self.sizes.cells {
            let at = cell as usize * INFO;
            if self.info.load(at + TAKEN) != 1 {
                continue;
            }
            let [cgroup, who, comm_a, comm_b] = self.info.array(at);
            let (tgid, device_op) = (who as u32, (who >> 32) as u32);
            let counts = self.cell(cell);
            self.age(cell, OwnerKey { cgroup, tgid, device_op }, counts, now_ns);
            if counts == [0; 3] {
                continue;
            }
            let Some(device) = self.name(device_op / 8, names) else { continue };
            let owner = self.owner(cgroup, tgid, [comm_a, comm_b]);
            add_io(owners.entry(owner).or_default(), &device, operation(device_op % 8), counts);
        }
        owners
            .into_iter()
            .map(|(owner, io)| {
                let cgroup = match &owner {
                    Owner::Task { cgroup, .. } | Owner::Writeback { cgroup } => *cgroup,
                    _ => 0,
                };
                OwnerIo { owner, cgroup_path: cgroups.path(cgroup), io }
            })
            .collect()
    }

    fn owner(&self, cgroup: u64, tgid: u32, comm: [u64; 2]) -> Owner {
        let bytes: Vec<u8> = comm.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
        let comm = String::from_utf8_lossy(&bytes).into_owned();
        if tgid == 0 {
            Owner::Writeback { cgroup }
        } else if !self.tells_kernel && is_kernel_thread(tgid, &comm) {
            Owner::Writeback { cgroup: 0 }
        } else {
            Owner::Task { tgid, comm, cgroup }
        }
    }

    fn cell(&self, cell: u32) -> [u64; 3] {
        let shards = self.sizes.shards.min(CELL_SHARDS) as usize;
        let mut sum = [0u64; 3];
        for shard in 0..shards {
            let at = (cell as usize * shards + shard) * CELL;
            for (total, word) in sum.iter_mut().zip(self.cells.array::<3>(at)) {
                *total = total.wrapping_add(word);
            }
        }
        sum
    }

    /// Gives back a cell that was idle for long.
    fn age(&mut self, cell: u32, key: OwnerKey, counts: [u64; 3], now_ns: u64) {
        let fresh = Idle { completed: counts[0], bytes: counts[1], since_ns: now_ns, leaving_ns: None };
        let idle = self.idle.entry(cell).or_insert(fresh);
        if (idle.completed, idle.bytes) != (counts[0], counts[1]) {
            // While it is leaving, late completions still count; it stays on its way out.
            *idle = Idle { leaving_ns: idle.leaving_ns, ..fresh };
            return;
        }
        match idle.leaving_ns {
            None if now_ns.saturating_sub(idle.since_ns) > IDLE_NS => {
                // The key may name another cell by now, when two CPUs raced for it: then it stays.
                if self.index.get(&key, 0).ok() == Some(cell) {
                    let _ = self.index.remove(&key);
                }
                idle.leaving_ns = Some(now_ns);
            }
            Some(left) if now_ns.saturating_sub(left) > QUARANTINE_NS => self.release(cell),
            _ => {}
        }
    }

    fn release(&mut self, cell: u32) {
        self.idle.remove(&cell);
        let shards = self.sizes.shards.min(CELL_SHARDS) as usize;
        for word in 0..shards * CELL {
            self.cells.store(cell as usize * shards * CELL + word, 0);
        }
        for word in 0..INFO {
            self.info.store(cell as usize * INFO + word, 0);
        }
        // A refusal leaves the cell unused for ever: a smaller pool, nothing worse.
        let _ = self.free.push(cell, 0);
    }
}

/// Without BTF the programs cannot see it: field 9 of /proc/PID/stat holds PF_KTHREAD. A thread that is gone is told by name.
fn is_kernel_thread(tgid: u32, comm: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{tgid}/stat")) {
        Ok(stat) => {
            let flags = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
            flags.is_some_and(|f| f & 0x0020_0000 != 0)
        }
        Err(_) => {
            ["kworker/", "jbd2/", "xfsaild/", "btrfs-", "md", "loop"].iter().any(|p| comm.starts_with(p))
        }
    }
}

fn add_operation(device: &mut BlockDevice, operation: Operation, totals: &Totals) {
    if let Some(requeues) = &mut device.requeues {
        *requeues += totals.0[4];
    }
    if let Some(merges) = &mut device.merges {
        *merges += totals.0[3];
    }
    let (completed, bytes, errors) = (totals.0[0], totals.0[1], totals.0[2]);
    let queue = totals.histogram(COUNTER_WORDS, 12);
    let in_device = totals.histogram(COUNTER_WORDS + SLOTS, 13);
    match device.operations.iter_mut().find(|o| o.operation == operation) {
        Some(o) => {
            o.completed += completed;
            o.bytes += bytes;
            o.errors += errors;
            merge(&mut o.queue, queue);
            merge(&mut o.device, in_device);
        }
        None => device.operations.push(BlockOperation {
            operation,
            completed,
            bytes,
            errors,
            queue: Some(queue),
            device: Some(in_device),
        }),
    }
}

fn merge(into: &mut Option<Histogram>, more: Histogram) {
    into.get_or_insert_default().add(&more);
}

fn add_io(io: &mut Vec<OwnerDeviceIo>, device: &str, operation: Operation, counts: [u64; 3]) {
    let [completed, bytes, wait_ns] = counts;
    if counts == [0; 3] {
        return;
    }
    match io.iter_mut().find(|i| i.device == device && i.operation == operation) {
        Some(i) => {
            i.completed += completed;
            i.bytes += bytes;
            i.wait_ns += wait_ns;
        }
        None => io.push(OwnerDeviceIo { device: device.to_owned(), operation, completed, bytes, wait_ns }),
    }
}
