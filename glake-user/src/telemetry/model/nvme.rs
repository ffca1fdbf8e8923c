//! NVMe controllers: by operation, by queue, by status.

use super::{View, count, count_opt, latency};
use crate::{
    events::sample::{Histogram, NvmeCommands, NvmeController},
    telemetry::state::{Nvme, NvmeOp, NvmeOpcode, NvmeQueue, NvmeStatus},
};
use std::collections::BTreeMap;

/// The operation that an opcode belongs to. Opcodes mean different things on the admin queue (0).
pub fn operation_of(queue: u16, opcode: u8) -> &'static str {
    match (queue, opcode) {
        (0, _) => "admin",
        // NVM command set specification, figure "Opcodes for NVM Commands"; 0x7d is the zone append of zoned sets.
        (_, 0x02) => "read",
        (_, 0x01 | 0x08 | 0x7d) => "write",
        (_, 0x00) => "flush",
        _ => "other",
    }
}

/// The name of an opcode in the specification's words, or its number.
pub fn opcode_name(queue: u16, opcode: u8) -> String {
    let io = [
        (0x00, "flush"),
        (0x01, "write"),
        (0x02, "read"),
        (0x04, "write uncorrectable"),
        (0x05, "compare"),
        (0x08, "write zeroes"),
        (0x09, "dataset management"),
        (0x0c, "verify"),
        (0x0d, "reservation register"),
        (0x0e, "reservation report"),
        (0x11, "reservation acquire"),
        (0x15, "reservation release"),
        (0x79, "zone management send"),
        (0x7a, "zone management receive"),
        (0x7d, "zone append"),
    ];
    // NVMe base specification, figure "Opcodes for Admin Commands".
    let admin = [
        (0x00, "delete submission queue"),
        (0x01, "create submission queue"),
        (0x02, "get log page"),
        (0x04, "delete completion queue"),
        (0x05, "create completion queue"),
        (0x06, "identify"),
        (0x08, "abort"),
        (0x09, "set features"),
        (0x0a, "get features"),
        (0x0c, "asynchronous event request"),
        (0x0d, "namespace management"),
        (0x10, "firmware commit"),
        (0x11, "firmware image download"),
        (0x14, "device self-test"),
        (0x15, "namespace attachment"),
        (0x18, "keep alive"),
        (0x7c, "doorbell buffer config"),
        (0x80, "format nvm"),
        (0x84, "sanitize"),
    ];
    let table: &[(u8, &str)] = if queue == 0 { &admin } else { &io };
    match table.iter().find(|(code, _)| *code == opcode) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("opcode 0x{opcode:02x}"),
    }
}

impl View<'_> {
    pub(super) fn nvme(&self) -> Option<Vec<Nvme>> {
        let (newer, grown) = (self.newer.nvme.as_ref()?, self.grown.nvme.as_ref()?);
        Some(newer.iter().zip(grown).map(|(total, growth)| self.controller(total, growth)).collect())
    }

    fn controller(&self, total: &NvmeController, growth: &NvmeController) -> Nvme {
        let seconds = self.seconds(self.older.nvme.is_some(), &format!("nvme {}", total.controller));
        let statuses = total.errors.iter().zip(&growth.errors).map(|(total, growth)| NvmeStatus {
            sct: total.sct,
            sc: total.sc,
            count: count(total.count, growth.count, seconds),
        });
        let sum = |c: &NvmeController| c.errors.iter().map(|e| e.count).sum();
        let queues = queues(total, growth, seconds);
        Nvme {
            controller: total.controller.clone(),
            pci: total.pci.clone(),
            in_flight: total.in_flight,
            operations: operations(total, growth, seconds),
            errors: count(sum(total), sum(growth), seconds),
            errors_by_status: statuses.collect(),
            retries: count_opt(total.retries, growth.retries, seconds),
            timeouts: count_opt(total.timeouts, growth.timeouts, seconds),
            resets: count_opt(total.resets, growth.resets, seconds),
            async_events: count_opt(total.async_events, growth.async_events, seconds),
            fill_ratio: fill_ratio(growth),
            busiest_queue_ratio: busiest(growth),
            queues,
        }
    }
}

/// The fullest submission queue, as a share of what it can hold. `None`: not watched, or no depth is known.
pub(in crate::telemetry) fn fill_ratio(controller: &NvmeController) -> Option<f64> {
    let queues = controller.queues.as_ref()?;
    // A queue of n entries holds n - 1 commands (NVMe base specification, "Full Queue").
    let ratios = queues.iter().filter_map(|q| {
        let holds = q.depth?.checked_sub(1).filter(|n| *n > 0)?;
        Some((f64::from(q.max_fill) / f64::from(holds)).min(1.0))
    });
    ratios.reduce(f64::max)
}

/// The busiest I/O queue's share of the commands. `None`: no I/O command in the interval.
pub(in crate::telemetry) fn busiest(grown: &NvmeController) -> Option<f64> {
    let mut by_queue: BTreeMap<u16, u64> = BTreeMap::new();
    for commands in grown.commands.iter().filter(|c| c.queue != 0) {
        *by_queue.entry(commands.queue).or_default() += commands.completed;
    }
    let all: u64 = by_queue.values().sum();
    let most = by_queue.values().max().copied()?;
    (all > 0).then(|| most as f64 / all as f64)
}

/// Commands added up over the queues, or over the opcodes.
#[derive(Default)]
struct Sum {
    completed: u64,
    grown: u64,
    /// Bytes and their growth. `None` as soon as one part is unknown.
    bytes: Option<(u64, u64)>,
    latency: Histogram,
    parts: usize,
}

impl Sum {
    fn take(&mut self, total: &NvmeCommands, growth: &NvmeCommands) {
        let bytes = total.bytes.zip(growth.bytes);
        self.bytes = if self.parts == 0 {
            bytes
        } else {
            self.bytes.zip(bytes).map(|((total, grown), (t, g))| (total + t, grown + g))
        };
        self.parts += 1;
        self.completed += total.completed;
        self.grown += growth.completed;
        self.latency.add(&growth.latency);
    }
}

fn operations(total: &NvmeController, growth: &NvmeController, seconds: Option<f64>) -> Vec<NvmeOp> {
    let mut sums: Vec<(&'static str, Sum)> =
        ["read", "write", "flush", "other", "admin"].map(|name| (name, Sum::default())).into();
    for (total, growth) in total.commands.iter().zip(&growth.commands) {
        let operation = operation_of(total.queue, total.opcode);
        if let Some((_, sum)) = sums.iter_mut().find(|(name, _)| *name == operation) {
            sum.take(total, growth);
        }
    }
    let seen = sums.into_iter().filter(|(_, sum)| sum.parts > 0);
    let items = seen.map(|(operation, sum)| NvmeOp {
        operation: operation.into(),
        completed: count(sum.completed, sum.grown, seconds),
        bytes: sum.bytes.map(|(total, grown)| count(total, grown, seconds)),
        latency: latency(&sum.latency),
    });
    items.collect()
}

fn queues(total: &NvmeController, growth: &NvmeController, seconds: Option<f64>) -> Vec<NvmeQueue> {
    let mut sums: BTreeMap<u16, (Sum, Vec<NvmeOpcode>)> = BTreeMap::new();
    for (total, growth) in total.commands.iter().zip(&growth.commands) {
        let (sum, opcodes) = sums.entry(total.queue).or_default();
        sum.take(total, growth);
        opcodes.push(NvmeOpcode {
            opcode: total.opcode,
            name: opcode_name(total.queue, total.opcode),
            completed: count(total.completed, growth.completed, seconds),
        });
    }
    let fills = total.queues.iter().flatten();
    let fills: BTreeMap<u16, _> = fills.map(|q| (q.queue, q)).collect();
    let items = sums.into_iter().map(|(queue, (sum, opcodes))| NvmeQueue {
        queue,
        completed: count(sum.completed, sum.grown, seconds),
        latency: latency(&sum.latency),
        opcodes,
        max_fill: fills.get(&queue).map(|q| q.max_fill),
        depth: fills.get(&queue).and_then(|q| q.depth),
    });
    items.collect()
}
