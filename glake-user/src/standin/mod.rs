//! Test doubles of real memory that can refuse, lie, lag and drop.

pub mod gpu;
mod gpu_memory;
mod gpu_stream;

use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, cuda::Cuda};

/// GPU `ordinal` of this process; with `GLAKE_DEVICE=host` the host GPU in its place: host memory, for tests and for
/// machines without a GPU.
pub fn device(ordinal: u32) -> Result<Arc<dyn Device>> {
    match std::env::var("GLAKE_DEVICE").as_deref() {
        Ok("host") => Ok(Arc::new(gpu::HostGpu::new(gpu::Settings::default())?)),
        Err(_) | Ok("" | "cuda") => Ok(Arc::new(Cuda::open(ordinal)?)),
        Ok(other) => {
            Err(Error::new(Kind::BadInput, format!("GLAKE_DEVICE is {other:?}"))
                .remedy("it takes cuda or host"))
        }
    }
}
