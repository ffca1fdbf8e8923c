//! One GPU through the CUDA driver: each call typed, checked and named. No policy.

mod names;

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Mutex;
use std::sync::PoisonError;

use cudarc::driver::sys as cu;

use super::cuda::{Code, Functions, driver, kind_of, name_of};
use crate::error::{Error, Kind, Result};

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
const POSIX_FD: u32 = 1;
/// CU_EVENT_DISABLE_TIMING
const NO_TIMING: u32 = 2;
/// CU_STREAM_NON_BLOCKING
const NON_BLOCKING: u32 = 1;

/// A GPU of this process.
pub struct CudaGpu {
    f: &'static Functions,
    ordinal: i32,
    device: c_int,
    context: Context,
    /// Peers that have access to this GPU's memory.
    peers: Mutex<Vec<i32>>,
    events: Mutex<Vec<u64>>,
    exportable: bool,
    rdma: bool,
}

struct Context(cu::CUcontext);

// SAFETY: a context handle is an opaque number to us; the driver allows any thread to make it current.
unsafe impl Send for Context {}
// SAFETY: as above; nothing is ever read through the pointer.
unsafe impl Sync for Context {}

/// How many GPUs this process sees. `Missing` without a driver.
pub fn count() -> Result<u32> {
    let f = driver()?;
    let mut n = 0;
    // SAFETY: `n` is a valid place for an int.
    check(f, unsafe { (f.device_count)(&raw mut n) }, || "counting GPUs".to_owned())?;
    Ok(u32::try_from(n).unwrap_or(0))
}

fn check(f: &Functions, code: Code, doing: impl FnOnce() -> String) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::new(kind_of(code), format!("{}: {}", doing(), name_of(f, code))))
}

impl CudaGpu {
    /// Opens GPU `ordinal` with its primary context, which torch and the runtime use too.
    pub fn open(ordinal: u32) -> Result<CudaGpu> {
        let f = driver()?;
        let index = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let mut device = 0;
        // SAFETY: `device` is a valid place for an int.
        check(f, unsafe { (f.device)(&raw mut device, index) }, || format!("opening GPU {ordinal}"))?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a pointer; the retain is matched in Drop.
        let code = unsafe { (f.primary_retain)(&raw mut context, device) };
        check(f, code, || format!("retaining the primary context of GPU {ordinal}"))?;
        let mut gpu = CudaGpu {
            f,
            ordinal: index,
            device,
            context: Context(context),
            peers: Mutex::new(Vec::new()),
            events: Mutex::new(Vec::new()),
            exportable: false,
            rdma: false,
        };
        use cu::CUdevice_attribute as A;
        gpu.need(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        gpu.exportable =
            gpu.attribute(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)? != 0;
        gpu.rdma = gpu.attribute(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0;
        Ok(gpu)
    }

    fn need(&self, attribute: cu::CUdevice_attribute) -> Result<()> {
        if self.attribute(attribute)? != 0 {
            return Ok(());
        }
        let doing = format!("GPU {} has no virtual memory management", self.ordinal);
        Err(Error::new(Kind::Unsupported, doing).remedy("use a GPU and driver with CUDA 11.2 or later"))
    }

    fn attribute(&self, attribute: cu::CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is a valid place for an int.
        let code = unsafe { (self.f.attribute)(&raw mut value, attribute as u32, self.device) };
        self.check(code, || format!("reading attribute {} of GPU {}", attribute as u32, self.ordinal))?;
        Ok(value)
    }

    fn check(&self, code: Code, doing: impl FnOnce() -> String) -> Result<()> {
        check(self.f, code, doing)
    }

    /// Runs `call` with this GPU's context current, and leaves the thread's context as it was.
    pub(super) fn inside(
        &self,
        doing: impl FnOnce() -> String,
        call: impl FnOnce(&Functions) -> Code,
    ) -> Result<()> {
        // SAFETY: the context is retained for as long as `self` lives.
        let code = unsafe { (self.f.context_push)(self.context.0) };
        self.check(code, || format!("entering the context of GPU {}", self.ordinal))?;
        let code = call(self.f);
        let mut before = ptr::null_mut();
        // SAFETY: `before` is a valid place; the stack has at least what was pushed above.
        let popped = unsafe { (self.f.context_pop)(&raw mut before) };
        self.check(code, doing)?;
        self.check(popped, || format!("leaving the context of GPU {}", self.ordinal))
    }

    fn properties(&self) -> cu::CUmemAllocationProp {
        let none = cu::CUmemAllocationHandleType_enum(0);
        cu::CUmemAllocationProp {
            type_: cu::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: if self.exportable {
                cu::CUmemAllocationHandleType_enum(POSIX_FD)
            } else {
                none
            },
            location: location(self.device),
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: cu::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: u8::from(self.rdma),
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    /// The GPU's index.
    pub fn ordinal(&self) -> u32 {
        u32::try_from(self.ordinal).unwrap_or(0)
    }

    /// Minimum and recommended granularity.
    pub fn granularity(&self) -> Result<(u64, u64)> {
        let ask = |flag| {
            let mut size = 0;
            let properties = self.properties();
            // SAFETY: both pointers are valid for the call.
            let code = unsafe { (self.f.granularity)(&raw mut size, &raw const properties, flag) };
            self.check(code, || format!("asking GPU {} for its granularity", self.ordinal))?;
            Ok(size as u64)
        };
        Ok((ask(0)?, ask(1)?))
    }

    /// Free and total bytes.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        self.inside(
            || format!("asking GPU {} for its memory", self.ordinal),
            // SAFETY: both places are valid.
            |f| unsafe { (f.mem_info)(&raw mut free, &raw mut total) },
        )?;
        Ok((free as u64, total as u64))
    }

    /// Reserves address space.
    pub fn reserve(&self, size: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place; alignment 0 and no wish for an address.
        let code = unsafe { (self.f.reserve)(&raw mut address, size as usize, 0, 0, 0) };
        self.check(code, || format!("reserving {size} bytes of address space"))?;
        Ok(address)
    }

    /// Gives address space back.
    pub fn unreserve(&self, address: u64, size: u64) -> Result<()> {
        // SAFETY: the driver checks that this is a reservation without mappings.
        let code = unsafe { (self.f.unreserve)(address, size as usize) };
        self.check(code, || format!("giving back {size} bytes of address space at {address:#x}"))
    }

    /// Physical memory.
    pub fn create(&self, size: u64) -> Result<u64> {
        let properties = self.properties();
        let mut handle = 0;
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (self.f.create)(&raw mut handle, size as usize, &raw const properties, 0) };
        self.check(code, || format!("creating {size} bytes on GPU {}", self.ordinal))?;
        Ok(handle)
    }

    /// Gives physical memory back.
    pub fn release(&self, handle: u64) -> Result<()> {
        // SAFETY: the driver checks the handle.
        self.check(unsafe { (self.f.release)(handle) }, || format!("releasing handle {handle:#x}"))
    }

    /// Maps a whole handle.
    pub fn map(&self, address: u64, size: u64, handle: u64) -> Result<()> {
        // SAFETY: the driver checks address, size and handle; GPU addresses are no memory of this process.
        let code = unsafe { (self.f.map)(address, size as usize, 0, handle, 0) };
        self.check(code, || format!("mapping {size} bytes at {address:#x}"))
    }

    /// Unmaps whole mappings. Work that still uses them faults: the caller answers for that.
    pub fn unmap(&self, address: u64, size: u64) -> Result<()> {
        // SAFETY: as in `map`.
        let code = unsafe { (self.f.unmap)(address, size as usize) };
        self.check(code, || format!("unmapping {size} bytes at {address:#x}"))
    }

    /// Grants this GPU and the enabled peers access.
    pub fn set_access(&self, address: u64, size: u64) -> Result<()> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let access = |device| cu::CUmemAccessDesc {
            location: location(device),
            flags: cu::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let all: Vec<_> = std::iter::once(self.device).chain(peers).map(access).collect();
        // SAFETY: the array holds as many descriptions as the call is told.
        let code = unsafe { (self.f.set_access)(address, size as usize, all.as_ptr(), all.len()) };
        self.check(code, || format!("granting access to {size} bytes at {address:#x}"))
    }

    /// Peer `ordinal` is granted access from the next [`CudaGpu::set_access`] on.
    pub fn enable_peer(&self, ordinal: u32) -> Result<()> {
        let peer = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let mut can = 0;
        // SAFETY: `can` is a valid place.
        let code = unsafe { (self.f.can_access_peer)(&raw mut can, peer, self.device) };
        self.check(code, || format!("asking whether GPU {ordinal} reaches GPU {}", self.ordinal))?;
        if can == 0 {
            let doing = format!("GPU {ordinal} cannot reach the memory of GPU {}", self.ordinal);
            return Err(Error::new(Kind::Unsupported, doing));
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if !peers.contains(&peer) && peer != self.device {
            peers.push(peer);
        }
        Ok(())
    }

    /// A descriptor of a handle.
    pub fn export(&self, handle: u64) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes an int.
        let code = unsafe { (self.f.export)((&raw mut fd).cast(), handle, POSIX_FD, 0) };
        self.check(code, || format!("exporting handle {handle:#x}"))?;
        // SAFETY: the driver made the descriptor for the caller, who owns it from here on.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// A handle from a descriptor.
    pub fn import(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let mut handle = 0;
        // The call takes the descriptor's number in place of a pointer.
        let number = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: `handle` is a valid place; the descriptor is open for the duration of the call.
        let code = unsafe { (self.f.import)(&raw mut handle, number, POSIX_FD) };
        self.check(code, || "importing a memory descriptor".to_owned())?;
        Ok(handle)
    }

    /// A stream that does not wait for the default stream.
    pub fn create_stream(&self) -> Result<u64> {
        let mut stream = ptr::null_mut();
        self.inside(
            || "creating a stream".to_owned(),
            |f| {
                // SAFETY: `stream` is a valid place.
                unsafe { (f.stream_create)(&raw mut stream, NON_BLOCKING) }
            },
        )?;
        Ok(stream as u64)
    }

    /// Destroys a stream that this process made.
    pub fn destroy_stream(&self, stream: u64) -> Result<()> {
        self.inside(
            || format!("destroying stream {stream:#x}"),
            |f| {
                // SAFETY: the driver checks the handle; streams are numbers to us.
                unsafe { (f.stream_destroy)(stream as cu::CUstream) }
            },
        )
    }

    /// Whether a stream is captured.
    pub fn is_capturing(&self, stream: u64) -> Result<bool> {
        let mut state = 0;
        self.inside(
            || format!("asking whether stream {stream:#x} is captured"),
            |f| {
                // SAFETY: `state` is a valid place.
                unsafe { (f.stream_is_capturing)(stream as cu::CUstream, &raw mut state) }
            },
        )?;
        Ok(state != 0)
    }

    /// Records an event from the pool.
    pub fn record(&self, stream: u64) -> Result<u64> {
        let pooled = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut event = pooled.unwrap_or(0) as cu::CUevent;
        self.inside(
            || format!("recording an event on stream {stream:#x}"),
            |f| {
                if event.is_null() {
                    // SAFETY: `event` is a valid place.
                    let code = unsafe { (f.event_create)(&raw mut event, NO_TIMING) };
                    if code != 0 {
                        return code;
                    }
                }
                // SAFETY: the event exists; the driver checks the stream.
                unsafe { (f.event_record)(event, stream as cu::CUstream) }
            },
        )?;
        Ok(event as u64)
    }

    /// Whether an event is done.
    pub fn is_done(&self, event: u64) -> Result<bool> {
        // SAFETY: the event came from `record` and is destroyed only in Drop.
        match unsafe { (self.f.event_query)(event as cu::CUevent) } {
            // CUDA_ERROR_NOT_READY
            600 => Ok(false),
            code => self.check(code, || "asking after an event".to_owned()).map(|()| true),
        }
    }

    /// The driver's CUDA version as it writes it: 13000 is 13.0.
    pub fn driver_version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: `version` is a valid place for an int.
        let code = unsafe { (self.f.driver_version)(&raw mut version) };
        self.check(code, || "asking for the driver's version".to_owned())?;
        Ok(version)
    }

    /// An event that keeps the time, recorded on a stream. For benchmarks; destroyed by [`CudaGpu::elapsed_ms`].
    pub fn stamp(&self, stream: u64) -> Result<u64> {
        let mut event: cu::CUevent = ptr::null_mut();
        self.inside(
            || "recording a time stamp".to_owned(),
            |f| {
                // SAFETY: `event` is a valid place.
                let code = unsafe { (f.event_create)(&raw mut event, 0) };
                if code != 0 {
                    return code;
                }
                // SAFETY: the event was just made; the driver checks the stream.
                unsafe { (f.event_record)(event, stream as cu::CUstream) }
            },
        )?;
        Ok(event as u64)
    }

    /// Milliseconds between two stamps whose stream was waited for. Destroys both.
    pub fn elapsed_ms(&self, from: u64, to: u64) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: both events came from `stamp`; `ms` is a valid place.
        let code = unsafe { (self.f.event_elapsed)(&raw mut ms, from as cu::CUevent, to as cu::CUevent) };
        for event in [from, to] {
            // SAFETY: each stamp is destroyed once, here.
            let _ = unsafe { (self.f.event_destroy)(event as cu::CUevent) };
        }
        self.check(code, || "reading the time between two stamps".to_owned())?;
        Ok(ms)
    }

    /// Plain device memory, as cudaMalloc gives it.
    pub fn alloc(&self, size: u64) -> Result<u64> {
        let mut at = 0;
        self.inside(
            || format!("allocating {size} bytes"),
            |f| {
                // SAFETY: `at` is a valid place.
                unsafe { (f.alloc)(&raw mut at, size as usize) }
            },
        )?;
        Ok(at)
    }

    /// Gives plain device memory back; waits for the device.
    pub fn free(&self, at: u64) -> Result<()> {
        // SAFETY: the driver checks the address.
        self.inside(|| format!("freeing {at:#x}"), |f| unsafe { (f.free)(at) })
    }

    /// Puts an event back.
    pub fn recycle(&self, event: u64) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Makes a stream wait for an event.
    pub fn stream_wait(&self, stream: u64, event: u64) -> Result<()> {
        self.inside(
            || format!("making stream {stream:#x} wait"),
            |f| {
                // SAFETY: the event exists; the driver checks the stream.
                unsafe { (f.stream_wait)(stream as cu::CUstream, event as cu::CUevent, 0) }
            },
        )
    }

    /// Waits for a stream.
    pub fn synchronize(&self, stream: u64) -> Result<()> {
        self.inside(
            || format!("waiting for stream {stream:#x}"),
            |f| {
                // SAFETY: the driver checks the stream.
                unsafe { (f.stream_synchronize)(stream as cu::CUstream) }
            },
        )
    }

    /// Fills device memory.
    pub fn fill(&self, stream: u64, address: u64, size: u64, byte: u8) -> Result<()> {
        self.inside(
            || format!("filling {size} bytes at {address:#x}"),
            |f| {
                // SAFETY: a wrong device address is an error or a GPU fault, never an access to memory of this process.
                unsafe { (f.fill)(address, byte, size as usize, stream as cu::CUstream) }
            },
        )
    }

    /// Copies device memory.
    pub fn copy(&self, stream: u64, to: u64, from: u64, size: u64) -> Result<()> {
        self.inside(
            || format!("copying {size} bytes from {from:#x} to {to:#x}"),
            |f| {
                // SAFETY: as in `fill`.
                unsafe { (f.copy)(to, from, size as usize, stream as cu::CUstream) }
            },
        )
    }

    /// Copies bytes to the device and waits.
    pub fn write(&self, stream: u64, to: u64, bytes: &[u8]) -> Result<()> {
        self.inside(
            || format!("writing {} bytes to {to:#x}", bytes.len()),
            |f| {
                // SAFETY: `bytes` outlives the copy, which is waited for below.
                unsafe { (f.write)(to, bytes.as_ptr().cast(), bytes.len(), stream as cu::CUstream) }
            },
        )?;
        self.synchronize(stream)
    }

    /// Copies bytes from the device and waits.
    pub fn read(&self, stream: u64, from: u64, bytes: &mut [u8]) -> Result<()> {
        let size = bytes.len();
        let copied = self.inside(
            || format!("reading {size} bytes at {from:#x}"),
            |f| {
                // SAFETY: `bytes` is borrowed for the whole call, and the copy is waited for below, also when it fails.
                unsafe { (f.read)(bytes.as_mut_ptr().cast(), from, size, stream as cu::CUstream) }
            },
        );
        self.synchronize(stream)?;
        copied
    }
}

fn location(device: c_int) -> cu::CUmemLocation {
    cu::CUmemLocation { type_: cu::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

impl Drop for CudaGpu {
    fn drop(&mut self) {
        for event in self.events.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: pooled events are ours and used by nobody.
            let _ = unsafe { (self.f.event_destroy)(event as cu::CUevent) };
        }
        // SAFETY: matches the retain in `open`. Errors at process end have no reader.
        let _ = unsafe { (self.f.primary_release)(self.device) };
    }
}
