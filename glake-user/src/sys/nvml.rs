//! NVIDIA's management library, loaded at run time: the few questions about a GPU's health, one call each. No policy.
//!
//! Loading it opens device nodes of the driver, which stay open until [`Library`] is dropped.

use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use std::ffi::{OsStr, c_uint};

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The library cannot be loaded: the dynamic linker's words.
    NoLibrary(String),
    /// The kernel module is not loaded.
    NoDriver,
    /// Library and kernel module are of different releases.
    Mismatch,
    /// The driver's device nodes may not be opened.
    NoPermission,
    /// This GPU, or this release of the library, does not have it.
    NotSupported,
    /// There is nothing at this index.
    NotFound,
    /// The GPU is gone from the bus.
    Lost,
    /// The GPU wants a reset before it answers.
    ResetRequired,
    /// Anything else, in the library's words.
    Other(String),
}

impl From<NvmlError> for Refusal {
    fn from(error: NvmlError) -> Refusal {
        match error {
            NvmlError::LibloadingError(e) => Refusal::NoLibrary(e.to_string()),
            NvmlError::LibraryNotFound => Refusal::NoLibrary(error.to_string()),
            NvmlError::DriverNotLoaded | NvmlError::Uninitialized => Refusal::NoDriver,
            NvmlError::LibRmVersionMismatch => Refusal::Mismatch,
            NvmlError::NoPermission | NvmlError::OperatingSystem => Refusal::NoPermission,
            NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
                Refusal::NotSupported
            }
            NvmlError::NotFound => Refusal::NotFound,
            NvmlError::GpuLost => Refusal::Lost,
            NvmlError::ResetRequired => Refusal::ResetRequired,
            other => Refusal::Other(other.to_string()),
        }
    }
}

/// An answer or why there is none.
pub type Answer<T> = Result<T, Refusal>;

/// The library, initialised.
pub struct Library(Nvml);

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

/// A GPU, or one MIG instance of it.
pub struct Handle<'a> {
    device: Device<'a>,
    library: &'a Library,
}

/// Corrected and uncorrected errors are counted apart, and both since the driver was loaded and since ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ecc {
    /// Since the driver was loaded or the GPU was reset.
    VolatileCorrected,
    /// The same, uncorrected.
    VolatileUncorrected,
    /// Over the GPU's life.
    AggregateCorrected,
    /// The same, uncorrected.
    AggregateUncorrected,
}

/// Rows of HBM that were replaced by spare ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemappedRows {
    /// Because of corrected errors.
    pub correctable: u32,
    /// Because of uncorrected ones.
    pub uncorrectable: u32,
    /// A remapping waits for the next reset.
    pub pending: bool,
    /// A remapping failed, ever.
    pub failure: bool,
}

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    /// All of it.
    pub total: u64,
    /// Kept by driver and firmware. `None`: counted as used by this release.
    pub reserved: Option<u64>,
    /// Free.
    pub free: u64,
    /// Used.
    pub used: u64,
}

/// NVML_PAGE_RETIREMENT_CAUSE_*.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetiredFor {
    /// Several corrected errors at one place.
    MultipleSingleBit = 0,
    /// One uncorrected error.
    DoubleBit = 1,
}

impl Library {
    /// Loads and initialises `path`. Takes as long as the driver takes, which may be for ever.
    ///
    /// # Errors
    /// Why not.
    pub fn open(path: &OsStr) -> Answer<Library> {
        Ok(Library(Nvml::builder().lib_path(path).init()?))
    }

    /// The kernel module's release.
    ///
    /// # Errors
    /// As any call.
    pub fn driver_version(&self) -> Answer<String> {
        Ok(self.0.sys_driver_version()?)
    }

    /// How many GPUs it lists.
    ///
    /// # Errors
    /// As any call.
    pub fn count(&self) -> Answer<u32> {
        Ok(self.0.device_count()?)
    }

    /// One of them.
    ///
    /// # Errors
    /// `Lost` among others.
    pub fn gpu(&self, index: u32) -> Answer<Handle<'_>> {
        Ok(Handle { device: self.0.device_by_index(index)?, library: self })
    }
}

impl Handle<'_> {
    /// `GPU-...` or `MIG-...`.
    ///
    /// # Errors
    /// As any call.
    pub fn uuid(&self) -> Answer<String> {
        Ok(self.device.uuid()?)
    }

    /// Its model.
    ///
    /// # Errors
    /// As any call.
    pub fn name(&self) -> Answer<String> {
        Ok(self.device.name()?)
    }

    /// Its PCI address, with a domain of eight digits.
    ///
    /// # Errors
    /// As any call.
    pub fn pci(&self) -> Answer<String> {
        Ok(self.device.pci_info()?.bus_id)
    }

    /// Whether ECC is on.
    ///
    /// # Errors
    /// `NotSupported` where there is no ECC.
    pub fn ecc_enabled(&self) -> Answer<bool> {
        Ok(self.device.is_ecc_enabled()?.currently_enabled)
    }

    /// A count of ECC errors.
    ///
    /// # Errors
    /// As any call.
    pub fn ecc_errors(&self, which: Ecc) -> Answer<u64> {
        let (kind, since) = match which {
            Ecc::VolatileCorrected => (MemoryError::Corrected, EccCounter::Volatile),
            Ecc::VolatileUncorrected => (MemoryError::Uncorrected, EccCounter::Volatile),
            Ecc::AggregateCorrected => (MemoryError::Corrected, EccCounter::Aggregate),
            Ecc::AggregateUncorrected => (MemoryError::Uncorrected, EccCounter::Aggregate),
        };
        Ok(self.device.total_ecc_errors(kind, since)?)
    }

    /// Rows replaced by spare ones (Ampere and newer).
    ///
    /// # Errors
    /// `NotSupported` on older GPUs.
    pub fn remapped_rows(&self) -> Answer<RemappedRows> {
        let call = nvml_sym(self.library.0.lib().nvmlDeviceGetRemappedRows.as_ref())?;
        // SAFETY: `device` lives no longer than the library it came from, and the handle is used for one call.
        let handle = unsafe { self.device.handle() };
        let [mut correctable, mut uncorrectable, mut pending, mut failure]: [c_uint; 4] = [0; 4];
        // SAFETY: nvml.h: four places to write to, each a variable of its own that outlives the call.
        let code = unsafe { call(handle, &mut correctable, &mut uncorrectable, &mut pending, &mut failure) };
        nvml_try(code)?;
        Ok(RemappedRows { correctable, uncorrectable, pending: pending != 0, failure: failure != 0 })
    }

    /// Pages taken out of use (before Ampere).
    ///
    /// # Errors
    /// `NotSupported` on newer GPUs.
    pub fn retired_pages(&self, cause: RetiredFor) -> Answer<u32> {
        let call = nvml_sym(self.library.0.lib().nvmlDeviceGetRetiredPages.as_ref())?;
        // SAFETY: as above.
        let handle = unsafe { self.device.handle() };
        let mut count: c_uint = 0;
        // SAFETY: nvml.h: with a count of 0 no address is written and the number of pages is told instead.
        let code = unsafe { call(handle, cause as c_uint, &mut count, std::ptr::null_mut()) };
        match nvml_try(code) {
            Ok(()) | Err(NvmlError::InsufficientSize(_)) => Ok(count),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether pages wait for the next start of the driver to be taken out of use.
    ///
    /// # Errors
    /// As any call.
    pub fn retirement_pending(&self) -> Answer<bool> {
        Ok(self.device.are_pages_pending_retired()?)
    }

    /// Its memory.
    ///
    /// # Errors
    /// As any call.
    pub fn memory(&self) -> Answer<Bytes> {
        let info = self.device.memory_info()?;
        Ok(Bytes { total: info.total, reserved: Some(info.reserved), free: info.free, used: info.used })
    }

    /// The window through which others reach its memory.
    ///
    /// # Errors
    /// As any call.
    pub fn bar1(&self) -> Answer<Bytes> {
        let info = self.device.bar1_memory_info()?;
        Ok(Bytes { total: info.total, reserved: None, free: info.free, used: info.used })
    }

    /// Processes with memory of it, and how much. `None`: not told.
    ///
    /// # Errors
    /// As any call.
    pub fn processes(&self) -> Answer<Vec<(u32, Option<u64>)>> {
        let mut all = self.device.running_compute_processes()?;
        match self.device.running_graphics_processes() {
            Ok(graphics) => all.extend(graphics),
            // A GPU without graphics has no such processes.
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {}
            Err(e) => return Err(e.into()),
        }
        all.sort_by_key(|process| process.pid);
        // A process may compute and draw: its memory is the same.
        all.dedup_by_key(|process| process.pid);
        let bytes = |used| match used {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        Ok(all.into_iter().map(|process| (process.pid, bytes(process.used_gpu_memory))).collect())
    }

    /// Percent of the last moments in which some kernel ran. Means nothing under MIG.
    ///
    /// # Errors
    /// As any call.
    pub fn busy_percent(&self) -> Answer<u32> {
        Ok(self.device.utilization_rates()?.gpu)
    }

    /// MIG now, and after the next reset.
    ///
    /// # Errors
    /// `NotSupported` where there is none.
    pub fn mig(&self) -> Answer<(bool, bool)> {
        let mode = self.device.mig_mode()?;
        Ok((mode.current != 0, mode.pending != 0))
    }

    /// The most MIG instances it can have.
    ///
    /// # Errors
    /// As any call.
    pub fn most_instances(&self) -> Answer<u32> {
        Ok(self.device.mig_device_count()?)
    }

    /// A MIG instance.
    ///
    /// # Errors
    /// `NotFound` where this index is not in use.
    pub fn instance(&self, index: u32) -> Answer<Handle<'_>> {
        Ok(Handle { device: self.device.mig_device_by_index(index)?, library: self.library })
    }

    /// The numbers of a MIG instance: GPU instance and compute instance.
    ///
    /// # Errors
    /// As any call.
    pub fn instance_ids(&self) -> Answer<(u32, u32)> {
        let lib = self.library.0.lib();
        let of_gpu = nvml_sym(lib.nvmlDeviceGetGpuInstanceId.as_ref())?;
        let of_compute = nvml_sym(lib.nvmlDeviceGetComputeInstanceId.as_ref())?;
        // SAFETY: as above.
        let handle = unsafe { self.device.handle() };
        let (mut gpu, mut compute): (c_uint, c_uint) = (0, 0);
        // SAFETY: one place to write to, which outlives the call.
        nvml_try(unsafe { of_gpu(handle, &mut gpu) })?;
        // SAFETY: as above.
        nvml_try(unsafe { of_compute(handle, &mut compute) })?;
        Ok((gpu, compute))
    }
}
