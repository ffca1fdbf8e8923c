//! Test doubles of real memory that can refuse, lie, lag and drop.

pub mod gpu;
mod gpu_memory;
mod gpu_space;
mod gpu_stream;

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, cuda::Cuda};

/// GPUs that the host stands in for: as many as a large host has, which cost nothing until they are used.
const HOST_GPUS: u32 = 8;

/// GPU `ordinal` of this process; with `GLAKE_DEVICE=host` a host GPU in its place: host memory, for tests and for
/// machines without a GPU.
pub fn device(ordinal: u32) -> Result<Arc<dyn Device>> {
    match std::env::var("GLAKE_DEVICE").as_deref() {
        Ok("host") => host(ordinal),
        Err(_) | Ok("" | "cuda") => Ok(Arc::new(Cuda::open(ordinal)?)),
        Ok(other) => {
            Err(Error::new(Kind::BadInput, format!("GLAKE_DEVICE is {other:?}"))
                .remedy("it takes cuda or host"))
        }
    }
}

/// One of the host GPUs of this process, which reach each other.
fn host(ordinal: u32) -> Result<Arc<dyn Device>> {
    static ALL: OnceLock<Vec<Arc<gpu::HostGpu>>> = OnceLock::new();
    let all = match ALL.get() {
        Some(all) => all,
        None => {
            let made = gpu::HostGpu::peers(&[gpu::Settings::default(); HOST_GPUS as usize])?;
            ALL.get_or_init(|| made.into_iter().map(Arc::new).collect())
        }
    };
    match all.get(ordinal as usize) {
        Some(gpu) => Ok(Arc::clone(gpu) as Arc<dyn Device>),
        None => {
            Err(Error::new(Kind::Missing, format!("host GPU {ordinal}: the host stands in for {HOST_GPUS}")))
        }
    }
}
