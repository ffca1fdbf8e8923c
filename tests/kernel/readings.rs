//! Questions to a reading, in the tests' words. What is missing is 0: the tests compare with numbers that are not.

use glake::events::sample::{BlockOperation, NvmeCommands, Operation, Owner, OwnerDeviceIo, Probe, Sample};
use libtest_mimic::Failed;

/// Counters of one operation of a block device.
pub fn block<'a>(sample: &'a Sample, device: &str, operation: Operation) -> Option<&'a BlockOperation> {
    let devices = sample.block.as_ref()?;
    let device = devices.iter().find(|d| d.device == device)?;
    device.operations.iter().find(|o| o.operation == operation)
}

/// Requests and bytes of an operation between two readings.
pub fn block_between(from: &Sample, to: &Sample, device: &str, operation: Operation) -> (u64, u64) {
    let read = |s| block(s, device, operation).map_or((0, 0), |o| (o.completed, o.bytes));
    let (a, b) = (read(from), read(to));
    (b.0 - a.0, b.1 - a.1)
}

/// All queues of a controller.
pub fn commands<'a>(sample: &'a Sample, controller: &str) -> impl Iterator<Item = &'a NvmeCommands> {
    let found = sample.nvme.iter().flatten().find(|c| c.controller == controller);
    found.into_iter().flat_map(|c| &c.commands)
}

/// Commands and bytes of an opcode on the I/O queues between two readings.
pub fn nvme_between(from: &Sample, to: &Sample, controller: &str, opcode: u8) -> (u64, u64) {
    let read = |s| {
        let io = commands(s, controller).filter(|c| c.queue > 0 && c.opcode == opcode);
        io.fold((0, 0), |sum, c| (sum.0 + c.completed, sum.1 + c.bytes.unwrap_or(0)))
    };
    let (a, b) = (read(from), read(to));
    (b.0 - a.0, b.1 - a.1)
}

/// Each owner's I/O on a device by one operation.
pub fn owners<'a>(
    sample: &'a Sample,
    device: &'a str,
    operation: Operation,
) -> impl Iterator<Item = (&'a Owner, &'a OwnerDeviceIo)> {
    let all = sample.owners.iter().flatten().flat_map(|o| o.io.iter().map(move |io| (&o.owner, io)));
    all.filter(move |(_, io)| io.device == device && io.operation == operation)
}

/// Bytes of the owners that `fits` picks, between two readings.
pub fn owned_between(
    from: &Sample,
    to: &Sample,
    device: &str,
    operation: Operation,
    fits: impl Fn(&Owner) -> bool,
) -> u64 {
    let read = |s| owners(s, device, operation).filter(|(o, _)| fits(o)).map(|(_, io)| io.bytes).sum::<u64>();
    read(to) - read(from)
}

/// A drop counter.
pub fn dropped(sample: &Sample, source: &str, reason: &str) -> u64 {
    sample.dropped.iter().filter(|d| d.source == source && d.reason == reason).map(|d| d.count).sum()
}

/// A probe.
pub fn probe<'a>(sample: &'a Sample, name: &str) -> Option<&'a Probe> {
    sample.probes.iter().find(|p| p.name == name)
}

/// IOMMU faults that one source counted, and the devices that it named.
pub fn iommu_faults(sample: &Sample, source: &str) -> (u64, Vec<String>) {
    let faults = || sample.iommu_faults.iter().flatten().filter(|f| f.source == source);
    (faults().map(|f| f.count).sum(), faults().filter_map(|f| f.pci.clone()).collect())
}

/// A process that submitted its I/O itself.
pub fn is_task(owner: &Owner) -> bool {
    matches!(owner, Owner::Task { .. })
}

/// That a value is the expected one.
pub fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Result<(), Failed> {
    if got == expected { Ok(()) } else { Err(format!("{what}: {got:?}, expected {expected:?}").into()) }
}

/// A probe that has to be there.
pub fn the_probe<'a>(sample: &'a Sample, name: &str) -> Result<&'a Probe, Failed> {
    probe(sample, name).ok_or_else(|| format!("no {name}").into())
}
