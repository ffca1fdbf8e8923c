//! Host memory as the CUDA driver sees it: registered, and copied from and to while the program goes on.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys as cu;

use super::buffer::{Buffer, Lent, Part};
use super::cuda_gpu::CudaGpu;
use crate::error::{Error, Kind, Result};

/// CU_MEMHOSTREGISTER_PORTABLE: for every context of the process.
const PORTABLE: u32 = 1;

/// A registered range. The buffer that it is kept in drops it before it unmaps the memory.
struct Registration {
    gpu: Arc<CudaGpu>,
    address: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the range was registered once, in `register`, and is unregistered once, here.
        let _ = self.gpu.inside(
            || "unregistering host memory".to_owned(),
            |f| unsafe { (f.host_unregister)(self.address as *mut c_void) },
        );
    }
}

/// Locks a buffer's pages for every GPU of the process, until the buffer is freed.
pub(crate) fn register(gpu: &Arc<CudaGpu>, buffer: &Buffer) -> Result<()> {
    let (address, size) = (buffer.address() as usize, buffer.size());
    gpu.inside(
        || format!("registering {size} bytes of host memory with the driver"),
        |f| {
            // SAFETY: the range is mapped and stays so until the buffer drops the registration.
            unsafe { (f.host_register)(address as *mut c_void, size, PORTABLE) }
        },
    )
    .map_err(|e| match e.kind() {
        Kind::Exhausted => e.remedy("raise the limit of locked memory (ulimit -l), or make the ring smaller"),
        _ => e,
    })?;
    buffer.keep(Box::new(Registration { gpu: Arc::clone(gpu), address }));
    Ok(())
}

fn pointer(part: &Part, at: usize, size: usize) -> Result<*mut c_void> {
    let outside = |e: std::io::Error| Error::new(Kind::Misuse, "copying a part").because(e);
    part.pointer(at, size).map(<*mut u8>::cast).map_err(outside)
}

impl CudaGpu {
    /// Begins a copy from a part to the device. The part is lent: whoever takes it back must know that the copy is over.
    pub(crate) fn upload(&self, stream: u64, to: u64, lent: &Lent, at: usize, size: usize) -> Result<()> {
        let from = pointer(lent.part(), at, size)?;
        self.inside(
            || format!("copying {size} bytes to {to:#x}"),
            |f| {
                // SAFETY: the bytes are mapped, and stay so and unchanged while the part is lent.
                unsafe { (f.write)(to, from, size, stream as cu::CUstream) }
            },
        )
    }

    /// Begins a copy from the device into a part; otherwise as [`CudaGpu::upload`].
    pub(crate) fn download(&self, stream: u64, lent: &Lent, at: usize, from: u64, size: usize) -> Result<()> {
        let to = pointer(lent.part(), at, size)?;
        self.inside(
            || format!("copying {size} bytes from {from:#x}"),
            |f| {
                // SAFETY: the bytes are mapped, and nobody else reaches them while the part is lent.
                unsafe { (f.read)(to, from, size, stream as cu::CUstream) }
            },
        )
    }
}
