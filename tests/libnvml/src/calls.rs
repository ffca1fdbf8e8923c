//! The functions themselves.
#![allow(non_snake_case, reason = "the names are NVML's")]

use crate::scene::{
    Code, Gpu, INSUFFICIENT_SIZE, INVALID, LOST, NOT_FOUND, NOT_SUPPORTED, SUCCESS, Scene, UNINITIALIZED,
    UNKNOWN, find, now,
};
use std::ffi::{c_char, c_uint, c_ulonglong};
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static INITIALISED: AtomicU64 = AtomicU64::new(0);
static CONTROL: Mutex<Option<std::fs::File>> = Mutex::new(None);

/// The scene for a call of this name, after it has hung as long as it should; or the code it answers.
fn enter(name: &str) -> Result<Scene, Code> {
    if let Some(path) = std::env::var_os("GLAKE_STANDIN_NVML_CALLS") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{name}");
        }
    }
    loop {
        // Without a driver nothing is initialised for long.
        let scene = now().ok_or(UNKNOWN)?;
        if scene.hang.iter().any(|f| f == name) {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        return match scene.refuse.get(name).or_else(|| scene.refuse.get("*")) {
            Some(code) => Err(*code),
            None if name != "nvmlInit_v2" && INITIALISED.load(Ordering::SeqCst) == 0 => Err(UNINITIALIZED),
            None => Ok(scene),
        };
    }
}

fn answer(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// The device behind a handle, for a call of this name.
fn device(name: &str, handle: usize) -> Result<Gpu, Code> {
    find(&enter(name)?, handle)
}

fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller of a C function gives a place for its answer.
    unsafe { to.write(value) };
    Ok(())
}

fn put_text(to: *mut c_char, room: usize, text: &str) -> Result<(), Code> {
    if text.len() >= room {
        return Err(INSUFFICIENT_SIZE);
    }
    for (i, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the text and its end fit into the room that the caller gave.
        put(unsafe { to.add(i) }, byte.cast_signed())?;
    }
    Ok(())
}

fn supported<T>(value: Option<T>) -> Result<T, Code> {
    value.ok_or(NOT_SUPPORTED)
}

macro_rules! functions {
    ($($name:ident($($arg:ident: $kind:ty),*) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $kind),*) -> Code {
            let body = || -> Result<(), Code> { $body };
            answer(body())
        })*
    };
}

functions! {
    nvmlInit_v2() {
        enter("nvmlInit_v2")?;
        INITIALISED.fetch_add(1, Ordering::SeqCst);
        if let Ok(mut control) = CONTROL.lock() {
            *control = std::fs::File::open("/dev/nvidiactl").ok();
        }
        Ok(())
    }
    nvmlShutdown() {
        enter("nvmlShutdown")?;
        INITIALISED.store(0, Ordering::SeqCst);
        if let Ok(mut control) = CONTROL.lock() {
            *control = None;
        }
        Ok(())
    }
    nvmlSystemGetDriverVersion(to: *mut c_char, room: c_uint) {
        let scene = enter("nvmlSystemGetDriverVersion")?;
        put_text(to, room as usize, &scene.driver)
    }
    nvmlDeviceGetCount_v2(to: *mut c_uint) {
        let scene = enter("nvmlDeviceGetCount_v2")?;
        put(to, scene.count.unwrap_or(scene.gpus.len() as c_uint))
    }
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut usize) {
        let scene = enter("nvmlDeviceGetHandleByIndex_v2")?;
        let gpu = scene.gpus.get(index as usize).ok_or(INVALID)?;
        if gpu.lost {
            return Err(LOST);
        }
        put(to, index as usize + 1)
    }
    nvmlDeviceGetUUID(handle: usize, to: *mut c_char, room: c_uint) {
        put_text(to, room as usize, &device("nvmlDeviceGetUUID", handle)?.uuid)
    }
    nvmlDeviceGetName(handle: usize, to: *mut c_char, room: c_uint) {
        put_text(to, room as usize, &device("nvmlDeviceGetName", handle)?.name)
    }
    nvmlDeviceGetEccMode(handle: usize, current: *mut c_uint, pending: *mut c_uint) {
        let on = supported(device("nvmlDeviceGetEccMode", handle)?.ecc)?;
        put(current, on.into())?;
        put(pending, on.into())
    }
    nvmlDeviceGetTotalEccErrors(handle: usize, kind: c_uint, since: c_uint, to: *mut c_ulonglong) {
        let gpu = device("nvmlDeviceGetTotalEccErrors", handle)?;
        let counts = supported(if since == 0 { gpu.volatile } else { gpu.aggregate })?;
        put(to, *counts.get(kind as usize).ok_or(INVALID)?)
    }
    nvmlDeviceGetRemappedRows(handle: usize, corrected: *mut c_uint, uncorrected: *mut c_uint,
                              pending: *mut c_uint, failure: *mut c_uint) {
        let rows = supported(device("nvmlDeviceGetRemappedRows", handle)?.rows)?;
        for (to, value) in [corrected, uncorrected, pending, failure].into_iter().zip(rows) {
            put(to, value)?;
        }
        Ok(())
    }
    nvmlDeviceGetRetiredPages(handle: usize, cause: c_uint, count: *mut c_uint, _to: *mut c_ulonglong) {
        let pages = supported(device("nvmlDeviceGetRetiredPages", handle)?.retired)?;
        let pages = *pages.get(cause as usize).ok_or(INVALID)?;
        put(count, pages)?;
        if pages > 0 { Err(INSUFFICIENT_SIZE) } else { Ok(()) }
    }
    nvmlDeviceGetRetiredPagesPendingStatus(handle: usize, to: *mut c_uint) {
        put(to, supported(device("nvmlDeviceGetRetiredPagesPendingStatus", handle)?.retirement_pending)?)
    }
    nvmlDeviceGetMigMode(handle: usize, current: *mut c_uint, pending: *mut c_uint) {
        let [now, later] = supported(device("nvmlDeviceGetMigMode", handle)?.mig)?;
        put(current, now)?;
        put(pending, later)
    }
    nvmlDeviceGetMaxMigDeviceCount(handle: usize, to: *mut c_uint) {
        put(to, device("nvmlDeviceGetMaxMigDeviceCount", handle)?.instances.len() as c_uint)
    }
    nvmlDeviceGetMigDeviceHandleByIndex(handle: usize, index: c_uint, to: *mut usize) {
        let gpu = device("nvmlDeviceGetMigDeviceHandleByIndex", handle)?;
        gpu.instances.get(index as usize).ok_or(INVALID)?.as_ref().ok_or(NOT_FOUND)?;
        put(to, handle | (index as usize + 1) << 8)
    }
    nvmlDeviceGetGpuInstanceId(handle: usize, to: *mut c_uint) {
        put(to, supported(device("nvmlDeviceGetGpuInstanceId", handle)?.ids)?[0])
    }
    nvmlDeviceGetComputeInstanceId(handle: usize, to: *mut c_uint) {
        put(to, supported(device("nvmlDeviceGetComputeInstanceId", handle)?.ids)?[1])
    }
    nvmlDeviceGetPciInfo_v3(handle: usize, to: *mut PciInfo) {
        let gpu = device("nvmlDeviceGetPciInfo_v3", handle)?;
        let mut info = PciInfo::default();
        for (to, byte) in info.bus_id.iter_mut().zip(gpu.pci.bytes()) {
            *to = byte.cast_signed();
        }
        put(to, info)
    }
    nvmlDeviceGetMemoryInfo_v2(handle: usize, to: *mut MemoryV2) {
        let [total, reserved, free, used] = supported(device("nvmlDeviceGetMemoryInfo_v2", handle)?.memory)?;
        // SAFETY: the caller has written the version that it knows.
        let version = unsafe { (*to).version };
        put(to, MemoryV2 { version, total, reserved, free, used })
    }
    nvmlDeviceGetBAR1MemoryInfo(handle: usize, to: *mut [c_ulonglong; 3]) {
        put(to, supported(device("nvmlDeviceGetBAR1MemoryInfo", handle)?.bar1)?)
    }
    nvmlDeviceGetUtilizationRates(handle: usize, to: *mut [c_uint; 2]) {
        put(to, [supported(device("nvmlDeviceGetUtilizationRates", handle)?.busy)?, 0])
    }
    nvmlDeviceGetComputeRunningProcesses_v3(handle: usize, count: *mut c_uint, to: *mut Process) {
        let gpu = device("nvmlDeviceGetComputeRunningProcesses_v3", handle)?;
        // SAFETY: the caller has written how many there is room for.
        let room = unsafe { *count } as usize;
        put(count, gpu.processes.len() as c_uint)?;
        if room < gpu.processes.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (i, [pid, bytes]) in gpu.processes.iter().enumerate() {
            let process = Process { pid: *pid as c_uint, bytes: *bytes, instances: [u32::MAX; 2] };
            // SAFETY: there is room for so many.
            put(unsafe { to.add(i) }, process)?;
        }
        Ok(())
    }
}

/// nvmlPciInfo_t.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PciInfo {
    legacy: [c_char; 16],
    numbers: [c_uint; 5],
    bus_id: [c_char; 32],
}

/// nvmlMemory_v2_t.
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// nvmlProcessInfo_v2_t.
#[repr(C)]
pub(crate) struct Process {
    pid: c_uint,
    bytes: c_ulonglong,
    instances: [c_uint; 2],
}
