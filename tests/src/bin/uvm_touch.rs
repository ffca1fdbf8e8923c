//! A CUDA program with known managed-memory traffic: the CPU touches every page, then a kernel touches every word,
//! N times. It checks its own data at the end, can count from inside what the driver reports, can measure what each
//! event mask costs, and can make a kernel store out of bounds, which raises a real Xid 31.
//!
//! ```text
//! uvm_touch [SIZE_MIB] [--passes N] [--count] [--wait SECONDS] [--cost ROUNDS] [--oob]
//! ```
//! One JSON object on stdout.
#![allow(unsafe_code, reason = "it calls the CUDA driver API; every block says which promise it keeps")]

use anyhow::{Context, Result, bail, ensure};
use cudarc::driver::sys;
use glake::events::uvm::{queue::Queue, release};
use glake::sys::uvm::{BLOCK, Pages, ioctl};
use serde_json::json;
use std::ffi::{CStr, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// One thread a word: adds 1 to every 32-bit word of `words` at `base`.
const PTX: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 base, .param .u64 words)
{
    .reg .pred %p1;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [base];
    ld.param.u64 %rd2, [words];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd3, %r1, %r2;
    cvt.u64.u32 %rd4, %r3;
    add.u64 %rd3, %rd3, %rd4;
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra DONE;
    shl.b64 %rd5, %rd3, 2;
    add.u64 %rd5, %rd1, %rd5;
    ld.global.u32 %r4, [%rd5];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd5], %r4;
DONE:
    ret;
}
";

fn main() -> Result<()> {
    let options = Options::read()?;
    let gpu = Gpu::open()?;
    std::thread::sleep(options.wait);
    // Before any managed memory exists, so that the count from inside misses nothing; whoever watches from outside
    // gets a moment to attach, for the same reason.
    let inside = if options.count { Some(Inside::open()?) } else { None };
    std::thread::sleep(Duration::from_millis(200));
    let memory = gpu.managed(options.bytes)?;
    let result = if options.oob {
        out_of_bounds(&gpu, &memory)?
    } else if options.cost > 0 {
        cost(&gpu, &memory, options.cost)?
    } else {
        passes(&gpu, &memory, options.passes, inside)?
    };
    println!("{result}");
    Ok(())
}

struct Options {
    bytes: usize,
    passes: u32,
    count: bool,
    wait: Duration,
    cost: u32,
    oob: bool,
}

impl Options {
    fn read() -> Result<Options> {
        let mut o =
            Options { bytes: 256 << 20, passes: 3, count: false, wait: Duration::ZERO, cost: 0, oob: false };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut number = |what: &str| -> Result<u32> {
                args.next().with_context(|| format!("{what} needs a number"))?.parse().context("not a number")
            };
            match arg.as_str() {
                "--passes" => o.passes = number("--passes")?,
                "--count" => o.count = true,
                "--wait" => o.wait = Duration::from_secs(number("--wait")?.into()),
                "--cost" => o.cost = number("--cost")?,
                "--oob" => o.oob = true,
                size => {
                    let mib: usize = size.trim_end_matches("MiB").parse().with_context(|| size.to_owned())?;
                    o.bytes = mib << 20;
                }
            }
        }
        ensure!((1 << 20..=64 << 30).contains(&o.bytes), "a size of 1 MiB to 64 GiB");
        Ok(o)
    }
}

/// Page size of the CPU's touches.
const PAGE: usize = 4096;

fn passes(gpu: &Gpu, memory: &Managed, passes: u32, inside: Option<Inside>) -> Result<serde_json::Value> {
    let mut times = Vec::new();
    let start = Instant::now();
    for _ in 0..passes {
        let start = Instant::now();
        memory.cpu_touch();
        let touched = start.elapsed();
        gpu.touch(memory.address, memory.bytes)?;
        times.push(json!({"cpu_ms": ms(touched), "gpu_ms": ms(start.elapsed() - touched)}));
    }
    let mean_ms = ms(start.elapsed()) / f64::from(passes.max(1));
    // The check touches the memory too: it comes before the count is read, so that both sides see the same.
    let wrong = memory.wrong_words(passes);
    let counted = inside.map(Inside::read).transpose()?;
    Ok(
        json!({"pid": std::process::id(), "bytes": memory.bytes, "passes": passes, "times": times, "mean_ms": mean_ms,
              "counted": counted, "wrong_words": wrong}),
    )
}

/// Interleaved rounds: no queue, then each mask. Every round is one CPU touch and one kernel.
fn cost(gpu: &Gpu, memory: &Managed, rounds: u32) -> Result<serde_json::Value> {
    // "rare": fatal faults, thrashing and throttling only, so that what is left is the price of any mask at all.
    const KINDS: [(&str, u64); 5] =
        [("none", 0), ("rare", 0x1c40), ("light", 0x1c52), ("moves", 0x3dd6), ("all", 0x7ffe)];
    let version = release::loaded(std::path::Path::new("/"))?;
    let interface = release::interface(&version)?;
    let mut queue = Queue::open(&version, interface, own_uvm()?, 1 << 17)?;
    let mut samples: Vec<(&str, Vec<f64>, Vec<f64>, u64)> = // CPU touch, whole pass, events
        KINDS.iter().map(|(n, _)| (*n, Vec::new(), Vec::new(), 0)).collect();
    for round in 0..=rounds {
        // Another order each round, so that no mask always follows the same one.
        for i in 0..KINDS.len() {
            let which = (i + round as usize) % KINDS.len();
            let mask = KINDS[which].1;
            queue.enable(mask)?;
            let start = Instant::now();
            memory.cpu_touch();
            let touched = start.elapsed();
            gpu.touch(memory.address, memory.bytes)?;
            let whole = start.elapsed();
            queue.flush()?;
            queue.disable(mask)?;
            let seen = queue.drain(|_| {}).decoded;
            // The first round warms up.
            if round > 0 {
                samples[which].1.push(ms(touched));
                samples[which].2.push(ms(whole));
                samples[which].3 += seen;
            }
        }
    }
    ensure!(queue.dropped().iter().sum::<u64>() == 0, "events were dropped");
    let base = median(&samples[0].2);
    let gpu_part =
        |cpu: &[f64], whole: &[f64]| median(&whole.iter().zip(cpu).map(|(w, c)| w - c).collect::<Vec<_>>());
    let gpu_base = gpu_part(&samples[0].1, &samples[0].2);
    let masks: Vec<_> = samples
        .iter()
        .map(|(name, cpu, whole, events)| {
            json!({"mask": name, "median_ms": median(whole), "q1_ms": quantile(whole, 0.25),
                   "q3_ms": quantile(whole, 0.75), "cpu_touch_median_ms": median(cpu),
                   "gpu_touch_median_ms": gpu_part(cpu, whole),
                   "gpu_overhead_percent": (gpu_part(cpu, whole) / gpu_base - 1.0) * 100.0,
                   "overhead_percent": (median(whole) / base - 1.0) * 100.0, "events": events})
        })
        .collect();
    let wrong = memory.wrong_words((rounds + 1) * KINDS.len() as u32);
    Ok(json!({"driver": version.to_string(), "bytes": memory.bytes, "rounds": rounds, "masks": masks,
              "wrong_words": wrong}))
}

fn median(v: &[f64]) -> f64 {
    quantile(v, 0.5)
}

fn quantile(v: &[f64], q: f64) -> f64 {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    v.get(((v.len().saturating_sub(1)) as f64 * q).round() as usize).copied().unwrap_or(f64::NAN)
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

fn out_of_bounds(gpu: &Gpu, memory: &Managed) -> Result<serde_json::Value> {
    // Far outside of everything this process has mapped.
    let address = memory.address + (1 << 40);
    let error = gpu.touch(address, PAGE).err().map(|e| format!("{e:#}"));
    ensure!(error.is_some(), "the store out of bounds succeeded");
    Ok(json!({"pid": std::process::id(), "address": format!("0x{address:x}"), "error": error}))
}

/// What the driver reports, counted inside this process without the decoder under test: the type byte of each event,
/// and the driver's own counters.
struct Inside {
    slots: Pages,
    control: Pages,
    counters: Pages,
    // Closed before the pages above are freed is not needed: the driver pinned them.
    uvm: OwnedFd,
    _queue: OwnedFd,
    _counting: OwnedFd,
}

/// Room for about 8 passes over 256 MiB, some 63,000 events each: nobody empties this queue before the end.
const INSIDE_ENTRIES: u64 = 1 << 19;
const V2_ENTRY: usize = 72;

impl Inside {
    fn open() -> Result<Inside> {
        let uvm = own_uvm()?;
        let (queue, counting) = (tools()?, tools()?);
        let slots = Pages::new(INSIDE_ENTRIES as usize * V2_ENTRY)?;
        let (control, counters) = (Pages::new(536)?, Pages::new(128)?);
        let init = |fd: &OwnedFd, slots: u64, entries: u64, control: u64| -> Result<()> {
            let mut block = [0u8; BLOCK];
            block[0..8].copy_from_slice(&slots.to_ne_bytes());
            block[8..16].copy_from_slice(&entries.to_ne_bytes());
            block[16..24].copy_from_slice(&control.to_ne_bytes());
            block[40..44].copy_from_slice(&1u32.to_ne_bytes());
            block[44..48].copy_from_slice(&uvm.as_raw_fd().to_ne_bytes());
            call(fd, 76, &mut block, 48)
        };
        init(&queue, slots.address(), INSIDE_ENTRIES, control.address())?;
        init(&counting, 0, 0, counters.address())?;
        let mut block = [0u8; BLOCK];
        // Bytes to the GPU 0, bytes back 1, CPU faults 2, GPU faults (merged ones once) 9.
        block[0..8].copy_from_slice(&(1u64 | 1 << 1 | 1 << 2 | 1 << 9).to_ne_bytes());
        call(&counting, 60, &mut block, 8)?;
        let mut block = [0u8; BLOCK];
        block[0..8].copy_from_slice(&0x7ffeu64.to_ne_bytes());
        call(&queue, 58, &mut block, 8)?;
        Ok(Inside { slots, control, counters, uvm, _queue: queue, _counting: counting })
    }

    fn read(self) -> Result<serde_json::Value> {
        let mut block = [0u8; BLOCK];
        call(&self.uvm, 67, &mut block, 0)?;
        let put = u64::from(self.control.load_u32(12).context("control page")?) % INSIDE_ENTRIES;
        let mut by_type = [0u64; 256];
        let mut entry = [0u8; V2_ENTRY];
        for i in 0..put as usize {
            self.slots.copy_out(i * V2_ENTRY, &mut entry).context("inside the queue")?;
            by_type[usize::from(entry[0])] += 1;
        }
        let dropped: u64 = (0..64).filter_map(|i| self.control.load_u64(16 + 8 * i)).sum();
        ensure!(dropped == 0, "the count from inside lost {dropped} events: fewer passes, or a smaller size");
        let counter = |i: usize| self.counters.load_u64(8 * i).unwrap_or(0);
        Ok(json!({"counted_gpu_faults": by_type[3], "counted_cpu_faults": by_type[1],
                  "counted_migrations": by_type[2], "counted_replays": by_type[4], "counted_dropped": dropped,
                  "driver_to_gpu_bytes": counter(0), "driver_to_cpu_bytes": counter(1),
                  "driver_cpu_faults": counter(2), "driver_gpu_faults_merged_once": counter(9)}))
    }
}

fn call(fd: &OwnedFd, request: u32, block: &mut [u8; BLOCK], status_at: usize) -> Result<()> {
    ioctl(fd.as_fd(), request, block).with_context(|| format!("request {request}"))?;
    let status = u32::from_ne_bytes(block[status_at..status_at + 4].try_into()?);
    ensure!(status == 0, "request {request}: status 0x{status:x}");
    Ok(())
}

fn tools() -> Result<OwnedFd> {
    let file = std::fs::File::options().read(true).write(true).open("/dev/nvidia-uvm-tools");
    Ok(file.context("opening /dev/nvidia-uvm-tools")?.into())
}

/// A copy of the descriptor with this process's UVM address space: the one that answers the table request.
fn own_uvm() -> Result<OwnedFd> {
    for item in std::fs::read_dir("/proc/self/fd")?.flatten() {
        if std::fs::read_link(item.path()).is_ok_and(|p| p == std::path::Path::new("/dev/nvidia-uvm")) {
            let number: i32 = item.file_name().to_string_lossy().parse()?;
            // SAFETY: CUDA opened it and keeps it open for the life of the process; it is only copied here.
            let copy = unsafe { rustix::fd::BorrowedFd::borrow_raw(number) }.try_clone_to_owned()?;
            let table = Pages::new(257 * 16)?;
            let mut block = [0u8; BLOCK];
            block[0..8].copy_from_slice(&table.address().to_ne_bytes());
            if call(&copy, 77, &mut block, 8).is_ok() {
                return Ok(copy);
            }
        }
    }
    bail!("this process has no UVM address space")
}

/// The first GPU with the kernel loaded.
struct Gpu {
    function: sys::CUfunction,
}

fn cuda(doing: &str, result: sys::CUresult) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { bail!("{doing}: {result:?}") }
}

impl Gpu {
    fn open() -> Result<Gpu> {
        // SAFETY: it only tries to load the library.
        ensure!(unsafe { sys::is_culib_present() }, "no libcuda here");
        // SAFETY: the first CUDA call of the process, with the only flags there are.
        cuda("cuInit", unsafe { sys::cuInit(0) })?;
        let mut device = 0;
        // SAFETY: `device` is valid for one write.
        cuda("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, 0) })?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is valid for one write; the reference is kept until the process ends.
        cuda("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
        // SAFETY: the context was just retained.
        cuda("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })?;
        let mut module = std::ptr::null_mut();
        // SAFETY: PTX is a nul-terminated text; the module is never unloaded.
        cuda("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()) })?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name is a nul-terminated text.
        cuda("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&raw mut function, module, c"touch".as_ptr())
        })?;
        Ok(Gpu { function })
    }

    fn managed(&self, bytes: usize) -> Result<Managed> {
        let mut address = 0;
        let global = sys::CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: `address` is valid for one write.
        cuda("cuMemAllocManaged", unsafe { sys::cuMemAllocManaged(&raw mut address, bytes, global) })?;
        let memory = Managed { address, bytes };
        memory.clear();
        Ok(memory)
    }

    /// Adds 1 to every word of `bytes` at `address`, on the GPU, and waits for it.
    fn touch(&self, address: u64, bytes: usize) -> Result<()> {
        let mut base = address;
        let mut words = (bytes / 4) as u64;
        let blocks = u32::try_from(words.div_ceil(256))?;
        let mut parameters: [*mut c_void; 2] = [(&raw mut base).cast(), (&raw mut words).cast()];
        // SAFETY: the kernel takes two 64-bit parameters, both alive until the launch returns (it copies them).
        // What it touches is managed memory of at least `bytes`, or, for --oob, deliberately nothing.
        cuda("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                self.function,
                blocks,
                1,
                1,
                256,
                1,
                1,
                0,
                std::ptr::null_mut(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })?;
        // SAFETY: no arguments.
        cuda("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }
}

/// Managed memory, never freed: the process ends soon.
struct Managed {
    address: u64,
    bytes: usize,
}

impl Managed {
    fn word(&self, at: usize) -> *mut u32 {
        assert!(at + 4 <= self.bytes);
        (self.address as usize + at) as *mut u32
    }

    fn clear(&self) {
        // SAFETY: the memory is ours, `bytes` long, and no kernel runs.
        unsafe { std::ptr::write_bytes(self.address as usize as *mut u8, 0, self.bytes) };
    }

    /// Adds 1 to the first word of each page.
    fn cpu_touch(&self) {
        for at in (0..self.bytes).step_by(PAGE) {
            let word = self.word(at);
            // SAFETY: inside the memory, aligned, and no kernel runs; volatile so that each touch really happens.
            let old = unsafe { word.read_volatile() };
            // SAFETY: as above.
            unsafe { word.write_volatile(old + 1) };
        }
    }

    /// Words that do not hold what `passes` passes leave: 2 a pass in a page's first word, 1 in the others.
    fn wrong_words(&self, passes: u32) -> usize {
        (0..self.bytes)
            .step_by(4)
            .filter(|at| {
                let want = if at % PAGE == 0 { 2 * passes } else { passes };
                // SAFETY: inside the memory, aligned, and no kernel runs.
                let found = unsafe { self.word(*at).read_volatile() };
                found != want
            })
            .count()
    }
}
