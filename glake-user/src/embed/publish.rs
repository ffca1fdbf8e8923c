//! The heaps and copies of this process, told to whoever looks: a file in `/dev/shm`, written anew each second. It is gone at the
//! end, unless something was copied: then its last words stay, so that the copies of short programs count too.
//!
//! Files of processes of the same user that have ended are removed by the next one.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::process::Process;
use crate::copy::tally;
use crate::error::{Error, Result};
use crate::events::heaps::{FOLDER, HeapFile, HeapGpu, PREFIX, SCHEMA, SILENT, start_ticks};
use crate::gpu::Call;
use crate::stitch::Stats;

const EVERY: Duration = Duration::from_secs(1);

static ENDED: AtomicBool = AtomicBool::new(false);
static FILE: OnceLock<(PathBuf, u64)> = OnceLock::new();
/// One writer at a time.
static WRITING: Mutex<()> = Mutex::new(());

/// Begins, once per process. Without a writable `/dev/shm` nothing is told; the program does not suffer from that.
pub(super) fn start() {
    if FILE.get().is_some() {
        return;
    }
    let folder = Path::new("/").join(FOLDER);
    let Some(ticks) = start_ticks(Path::new("/proc"), "self") else { return };
    let path = folder.join(format!("{PREFIX}{}.{ticks}", std::process::id()));
    if FILE.set((path.clone(), ticks)).is_err() {
        return;
    }
    let begun = std::thread::Builder::new().name("glake-publish".to_owned()).spawn(move || {
        sweep(&folder);
        while !ENDED.load(Ordering::SeqCst) {
            if let Err(e) = write(&path, ticks, false) {
                log::info!("the statistics of this process are not published: {}", e.chain());
                return;
            }
            std::thread::park_timeout(EVERY);
        }
    });
    if let Err(e) = begun {
        log::info!("the statistics of this process are not published: {e}");
    }
}

/// At the end of the process.
pub(super) fn end() {
    ENDED.store(true, Ordering::SeqCst);
    let Some((path, ticks)) = FILE.get() else { return };
    // Nobody can be told of a failure here, and there may be no file yet.
    if tally().is_empty() {
        let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = fs::remove_file(path);
    } else {
        let _ = write(path, *ticks, true);
    }
}

fn write(path: &Path, start_ticks: u64, last: bool) -> Result<()> {
    let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    // The last words are the process's last.
    if ENDED.load(Ordering::SeqCst) && !last {
        return Ok(());
    }
    let process = Process::get();
    let gpus = process.brief_stats().into_iter().map(|(ordinal, stats)| gpu(ordinal, &stats)).collect();
    let file = HeapFile {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        start_ticks,
        fallbacks: process.fallbacks(),
        gpus,
        copies: tally(),
    };
    let text = serde_json::to_vec(&file).unwrap_or_default();
    // Renamed into place, so that no reader ever sees half of it. Readable by all: it holds sizes and counts.
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let doing = || format!("writing {}", part.display());
    let mut open = fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
    let mut out = open.open(&part).map_err(|e| Error::os(doing(), e))?;
    std::io::Write::write_all(&mut out, &text).map_err(|e| Error::os(doing(), e))?;
    fs::rename(&part, path).map_err(|e| Error::os(doing(), e))
}

fn gpu(ordinal: u32, stats: &Stats) -> HeapGpu {
    let calls = Call::ALL.iter().map(|call| {
        let at = *call as usize;
        (call.name().to_owned(), stats.foreground[at].calls + stats.background[at].calls)
    });
    HeapGpu {
        ordinal,
        pci: Process::get().pci_of(ordinal),
        allocated_bytes: stats.allocated.current,
        peak_allocated_bytes: stats.allocated.peak,
        reserved_bytes: stats.reserved.current,
        peak_reserved_bytes: stats.reserved.peak,
        remapped_bytes: stats.remapped_bytes,
        driver_calls: calls.collect(),
        ooms: stats.ooms,
        ooms_avoided: stats.ooms_avoided,
    }
}

/// Removes what dead processes of this user left behind.
fn sweep(folder: &Path) {
    // Safe to ask for: this process's own.
    let Ok(me) = fs::metadata("/proc/self") else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((pid, ticks)) = name.strip_prefix(PREFIX).and_then(|n| n.split_once('.')) else { continue };
        // A file that is still written belongs to a process of another pid namespace that shares this folder.
        let silent =
            |m: &fs::Metadata| m.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|a| a > SILENT);
        let own = entry.metadata().is_ok_and(|m| m.is_file() && m.uid() == me.uid() && silent(&m));
        let ticks = ticks.split('.').next().and_then(|t| t.parse::<u64>().ok());
        if own && ticks.is_some() && start_ticks(Path::new("/proc"), pid) != ticks {
            let _ = fs::remove_file(entry.path());
        }
    }
}
