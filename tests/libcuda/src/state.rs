//! What the machine is: its GPUs, and who called what.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};

use glake::error::{Error, Kind};
use glake::gpu::Costs;
use glake::standin::gpu::{HostGpu, Settings};

/// CUresult: numbers of cuda.h.
pub(crate) type Code = u32;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;

/// One GPU.
pub(crate) struct Gpu {
    pub(crate) device: HostGpu,
    /// Blocks of `cuMemAlloc_v2`: address, size, handle.
    pub(crate) blocks: Mutex<Vec<(u64, u64, u64)>>,
}

/// Calls of the classic allocator, for tests that must know who was asked.
pub(crate) static ALLOCS: AtomicU64 = AtomicU64::new(0);
pub(crate) static FREES: AtomicU64 = AtomicU64::new(0);
pub(crate) static SYNCHRONIZES: AtomicU64 = AtomicU64::new(0);
pub(crate) static CREATES: AtomicU64 = AtomicU64::new(0);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// The GPUs, made at the first question.
pub(crate) fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    GPUS.get_or_init(|| {
        let free = Costs::FREE;
        let capacity = setting("GLAKE_STANDIN_CAPACITY", 1 << 30);
        let settings = Settings { capacity, granularity: 2 << 20, costs: free, lag_ns: 0 };
        let make =
            |_| HostGpu::new(settings).ok().map(|device| Gpu { device, blocks: Mutex::new(Vec::new()) });
        (0..setting("GLAKE_STANDIN_GPUS", 1)).filter_map(make).collect()
    })
}

pub(crate) fn gpu(ordinal: i32) -> Option<&'static Gpu> {
    gpus().get(usize::try_from(ordinal).ok()?)
}

pub(crate) fn has_vmm() -> bool {
    std::env::var_os("GLAKE_STANDIN_NO_VMM").is_none()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver's number for what the host GPU answered.
pub(crate) fn code<T>(result: Result<T, Error>, then: impl FnOnce(T)) -> Code {
    match result {
        Ok(value) => {
            then(value);
            SUCCESS
        }
        Err(e) => match e.kind() {
            Kind::Exhausted => OUT_OF_MEMORY,
            Kind::Unsupported => NOT_SUPPORTED,
            Kind::Device => 700,
            Kind::TimedOut => NOT_READY,
            _ => INVALID_VALUE,
        },
    }
}
