//! One reading: every GPU is asked everything once.

use super::{Errors, GpuHealth, Instance, Memory, Mig, RemappedRows, RetiredPages};
use crate::pci;
use crate::sys::nvml::{Answer, Bytes, Ecc, Handle, Library, Refusal, RetiredFor};
use std::collections::BTreeMap;

/// More GPUs, and more instances of one, than any host has: the library is not believed beyond.
pub(super) const MOST_GPUS: u32 = 64;
const MOST_INSTANCES: u32 = 16;

/// What one reading gave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// The driver's release.
    pub driver: Option<String>,
    /// By index.
    pub gpus: Vec<GpuHealth>,
}

/// Asks all GPUs. `before` is the previous reading: it tells which GPU was at an index that is lost now.
///
/// # Errors
/// When the library as a whole does not answer: it must be opened again.
pub fn ask(library: &Library, before: &Reading) -> Answer<Reading> {
    let count = library.count()?;
    if count > MOST_GPUS {
        return Err(Refusal::Other(format!("it lists {count} GPUs")));
    }
    let mut reading = Reading { driver: library.driver_version().and_then(name).ok(), gpus: Vec::new() };
    for index in 0..count {
        let old = usize::try_from(index).ok().and_then(|i| before.gpus.get(i));
        let gpu = match library.gpu(index) {
            Ok(handle) => Asked::new(old).all(&handle)?,
            Err(why) if is_whole(&why) => return Err(why),
            Err(why) => Asked::new(old).refused(&why),
        };
        reading.gpus.push(gpu);
    }
    Ok(reading)
}

/// A name from the library, for labels and screens: short and printable, or none.
fn name(text: String) -> Answer<String> {
    let plain = !text.is_empty() && text.len() <= 96 && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    if plain { Ok(text) } else { Err(Refusal::Other("it is not printable text".into())) }
}

/// A refusal that is the library's, not one GPU's.
fn is_whole(why: &Refusal) -> bool {
    matches!(why, Refusal::NoDriver | Refusal::Mismatch | Refusal::NoLibrary(_))
}

/// Why one value is unknown, in words.
fn words(why: &Refusal) -> String {
    match why {
        Refusal::NotSupported => "this GPU or driver does not have it".into(),
        Refusal::NotFound => "there is none".into(),
        Refusal::Lost => "the GPU fell off the bus".into(),
        Refusal::ResetRequired => "the GPU answers only after a reset".into(),
        Refusal::NoPermission => "no permission".into(),
        Refusal::NoDriver => "the driver is not loaded".into(),
        Refusal::Mismatch => "library and driver are of different releases".into(),
        Refusal::NoLibrary(text) | Refusal::Other(text) => text.clone(),
    }
}

/// The GPU that is being asked.
struct Asked {
    gpu: GpuHealth,
    /// The library itself stopped answering.
    whole: Option<Refusal>,
}

impl Asked {
    /// Who a GPU is does not change: what was known stays known when it is lost.
    fn new(old: Option<&GpuHealth>) -> Asked {
        let known = old.cloned().unwrap_or_default();
        let gpu = GpuHealth { pci: known.pci, uuid: known.uuid, model: known.model, ..GpuHealth::default() };
        Asked { gpu, whole: None }
    }

    fn refused(mut self, why: &Refusal) -> GpuHealth {
        self.gpu.lost = *why == Refusal::Lost;
        self.gpu.unknown = BTreeMap::from([("all".to_owned(), words(why))]);
        self.gpu
    }

    /// A value, or its key among the unknown ones. A lost GPU is not asked any further: each call may take long.
    fn value<T>(&mut self, key: &str, question: impl FnOnce() -> Answer<T>) -> Option<T> {
        if self.gpu.lost || self.whole.is_some() {
            return None;
        }
        match question() {
            Ok(value) => Some(value),
            Err(why) => {
                self.gpu.lost = why == Refusal::Lost;
                self.gpu.unknown.insert(key.to_owned(), words(&why));
                self.whole = Some(why).filter(is_whole);
                None
            }
        }
    }

    fn all(mut self, handle: &Handle<'_>) -> Answer<GpuHealth> {
        if let Some(bus) = self.value("pci", || handle.pci()) {
            self.gpu.pci = pci::sysfs(&bus);
        }
        self.gpu.uuid = self.value("uuid", || name(handle.uuid()?)).or(self.gpu.uuid.take());
        self.gpu.model = self.value("model", || name(handle.name()?)).or(self.gpu.model.take());
        self.ecc(handle);
        self.pages(handle);
        let memory = self.value("memory", || handle.memory());
        let bar1 = self.value("bar1", || handle.bar1());
        (self.gpu.memory, self.gpu.bar1) = (memory.map(Memory::from), bar1.map(Memory::from));
        self.gpu.mig = self.mig(handle);
        if self.gpu.mig.as_ref().is_some_and(|mig| mig.enabled) {
            // Case J07: some releases answer 0 here, which is not true of any instance.
            let why = "not defined under MIG; per instance: DCGM_FI_PROF_GR_ENGINE_ACTIVE of DCGM";
            self.gpu.unknown.insert("busy_percent".into(), why.into());
        } else {
            self.gpu.busy_percent = self.value("busy_percent", || handle.busy_percent());
        }
        match self.whole {
            Some(why) => Err(why),
            None if self.gpu.lost => Ok(Asked::new(Some(&self.gpu)).refused(&Refusal::Lost)),
            None => Ok(self.gpu),
        }
    }

    fn ecc(&mut self, handle: &Handle<'_>) {
        self.gpu.ecc_enabled = self.value("ecc_enabled", || handle.ecc_enabled());
        if self.gpu.ecc_enabled == Some(false) {
            let why = "ECC is switched off on this GPU".to_owned();
            self.gpu.unknown.extend(["ecc_volatile", "ecc_aggregate"].map(|k| (k.to_owned(), why.clone())));
            return;
        }
        let mut errors = |key: &str, corrected, uncorrected| Errors {
            corrected: self.value(key, || handle.ecc_errors(corrected)),
            uncorrected: self.value(key, || handle.ecc_errors(uncorrected)),
        };
        let volatile = errors("ecc_volatile", Ecc::VolatileCorrected, Ecc::VolatileUncorrected);
        let aggregate = errors("ecc_aggregate", Ecc::AggregateCorrected, Ecc::AggregateUncorrected);
        (self.gpu.ecc_volatile, self.gpu.ecc_aggregate) = (volatile, aggregate);
    }

    fn pages(&mut self, handle: &Handle<'_>) {
        self.gpu.remapped_rows = self.value("remapped_rows", || handle.remapped_rows()).map(|rows| {
            let (correctable, uncorrectable) = (rows.correctable, rows.uncorrectable);
            RemappedRows { correctable, uncorrectable, pending: rows.pending, failure: rows.failure }
        });
        let mut retired = |cause| self.value("retired_pages", || handle.retired_pages(cause));
        let multiple_single_bit = retired(RetiredFor::MultipleSingleBit);
        let double_bit = retired(RetiredFor::DoubleBit);
        let pending = self.value("retired_pages", || handle.retirement_pending());
        self.gpu.retired_pages = RetiredPages { multiple_single_bit, double_bit, pending };
    }

    fn mig(&mut self, handle: &Handle<'_>) -> Option<Mig> {
        let (enabled, enabled_after_reset) = self.value("mig", || handle.mig())?;
        let mut mig = Mig { enabled, enabled_after_reset, instances: Vec::new() };
        if !enabled {
            return Some(mig);
        }
        let most = self.value("mig", || handle.most_instances())?;
        for index in 0..most.min(MOST_INSTANCES) {
            match handle.instance(index) {
                Ok(found) => mig.instances.push(self.instance(&found)),
                Err(Refusal::NotFound) => {}
                // The list would not be whole: none is better than some.
                Err(why) => return self.value("mig", || Err(why)),
            }
        }
        Some(mig)
    }

    fn instance(&mut self, handle: &Handle<'_>) -> Instance {
        let ids = self.value("mig_instances", || handle.instance_ids());
        let model = self.value("mig_instances", || name(handle.name()?));
        Instance {
            uuid: self.value("mig_instances", || name(handle.uuid()?)),
            gpu_instance: ids.map(|(gpu, _)| gpu),
            compute_instance: ids.map(|(_, compute)| compute),
            // "NVIDIA A100-SXM4-80GB MIG 2g.20gb"
            profile: model.and_then(|n| n.rsplit_once(" MIG ").map(|(_, profile)| profile.to_owned())),
            memory: self.value("mig_instances", || handle.memory()).map(Memory::from),
            bar1: self.value("mig_instances", || handle.bar1()).map(Memory::from),
        }
    }
}

impl From<Bytes> for Memory {
    fn from(bytes: Bytes) -> Memory {
        Memory {
            total_bytes: bytes.total,
            reserved_bytes: bytes.reserved,
            free_bytes: bytes.free,
            used_bytes: bytes.used,
        }
    }
}
