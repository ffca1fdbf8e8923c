//! The load: direct reads of 4 KiB at random places, so many at a time, for a given time.

use anyhow::{Context, Result, ensure};
use std::{
    fs::{File, OpenOptions},
    io::{Seek, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Bytes of a read.
pub const BLOCK: usize = 4096;
/// Larger than what a virtual disk's cache of our own last rounds would explain, small enough for any machine.
const FILE_BYTES: usize = 256 << 20;

/// What is read.
pub struct Load {
    path: PathBuf,
    blocks: u64,
    _folder: Option<tempfile::TempDir>,
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Reads done.
    pub reads: u64,
    /// Over this time.
    pub elapsed: Duration,
    /// CPU time of the reading threads, user and system.
    pub cpu_ns: u64,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.reads as f64 / self.elapsed.as_secs_f64()
    }

    pub fn cpu_ns_per_read(&self) -> f64 {
        self.cpu_ns as f64 / self.reads as f64
    }
}

impl Load {
    /// Opens a device, or makes a file whose every block is on the disk: holes and unwritten blocks would be read
    /// without it.
    pub fn open(device: Option<&Path>, folder: &Path) -> Result<Load> {
        let (path, folder) = match device {
            Some(device) => (device.to_owned(), None),
            None => {
                let folder = tempfile::tempdir_in(folder)?;
                let path = folder.path().join("blocks");
                let mut file = File::create(&path)?;
                let chunk: Vec<u8> =
                    (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
                (0..FILE_BYTES / chunk.len()).try_for_each(|_| file.write_all(&chunk))?;
                file.sync_all()?;
                (path, Some(folder))
            }
        };
        let blocks = direct(&path)?.seek(std::io::SeekFrom::End(0))? / BLOCK as u64;
        ensure!(blocks > 0, "{} has no whole block", path.display());
        Ok(Load { path, blocks, _folder: folder })
    }

    /// What is read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads for `time` with `depth` threads, each with one read at a time.
    pub fn run(&self, depth: usize, time: Duration) -> Result<Measured> {
        let file = direct(&self.path)?;
        let start = Instant::now();
        let work = |seed: u64| -> Result<(u64, u64)> {
            let mut buffer = Aligned::new();
            let mut random = Random(seed);
            let (mut reads, before) = (0, thread_cpu_ns());
            while start.elapsed() < time {
                file.read_exact_at(buffer.block(), random.below(self.blocks) * BLOCK as u64)?;
                reads += 1;
            }
            Ok((reads, thread_cpu_ns() - before))
        };
        let (mut reads, mut cpu_ns) = (0, 0);
        std::thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = (0..depth as u64).map(|i| scope.spawn(move || work(i + 1))).collect();
            for thread in threads {
                let (r, c) = thread.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
                (reads, cpu_ns) = (reads + r, cpu_ns + c);
            }
            Ok(())
        })?;
        ensure!(reads > 0, "no read ended within {time:?}");
        Ok(Measured { reads, elapsed: start.elapsed(), cpu_ns })
    }
}

/// One direct read, by a process of its own.
pub fn read_once(path: &Path) -> Result<()> {
    direct(path)?.read_exact_at(Aligned::new().block(), 0)?;
    Ok(())
}

fn direct(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    options.open(path).with_context(|| format!("opening {} for direct I/O", path.display()))
}

fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Marsaglia's xorshift: the same places each time for the same thread.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n
    }
}

/// One block whose bytes begin on a multiple of its size.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new() -> Aligned {
        Aligned(vec![0; 2 * BLOCK])
    }

    fn block(&mut self) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[skip..skip + BLOCK]
    }
}
