//! What a recording of an allocator holds, whatever format it came in.

use super::entries::{Entry, Frame};

/// Which kind of file it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `torch.cuda.memory._dump_snapshot()`.
    Torch,
    /// The log of RMM's logging adaptor.
    Rmm,
    /// STAlloc's `mem_log_dev*.txt`.
    Stalloc,
    /// A MiniMalloc benchmark instance: lifetimes and sizes.
    Minimalloc,
}

impl Format {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Format::Torch => "PyTorch snapshot",
            Format::Rmm => "RMM log",
            Format::Stalloc => "STAlloc trace",
            Format::Minimalloc => "MiniMalloc instance",
        }
    }
}

/// State of a block in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// In use.
    Allocated,
    /// Freed by the program, still in use by another stream.
    Pending,
    /// Free.
    Free,
}

/// One block of a segment at the moment of the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// State.
    pub state: BlockState,
}

/// A piece of memory that the allocator holds from the driver, at the moment of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The stream it belongs to.
    pub stream: u64,
    /// The pool for requests of at most 1 MiB.
    pub small: bool,
    /// A CUDA graph's or a MemPool's.
    pub private: bool,
    /// Grows by mapping.
    pub expandable: bool,
    /// Blocks by address; they tile the segment.
    pub blocks: Vec<Block>,
}

/// The settings the recording process ran with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// The variable as it was set; `None` where the file does not say.
    pub conf: Option<String>,
    /// Blocks of this size and more are never split; `None`: no limit.
    pub max_split_size: Option<u64>,
    /// Share of the limit at which cached blocks are given back; 0 is off.
    pub garbage_collection_threshold: f64,
    /// Expandable segments were on; `None` where the file does not say.
    pub expandable_segments: Option<bool>,
    /// Power-of-two rounding by size class in MiB; empty is off.
    pub roundup_power2_divisions: Vec<(u64, u64)>,
}

/// One GPU's part.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceRecording {
    /// CUDA's number of the device in the recording process.
    pub device: u32,
    /// Trace entries, oldest first.
    pub entries: Vec<Entry>,
    /// What was held at the end.
    pub segments: Vec<Segment>,
}

/// How much of the file was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// All of it.
    Whole,
    /// The file ends early, at this byte after unpacking.
    Truncated(u64),
    /// Reading stopped at this byte: the rest did not fit into the memory allowed.
    OverBudget(u64),
}

/// A file, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Its format.
    pub format: Format,
    /// Devices with anything recorded.
    pub devices: Vec<DeviceRecording>,
    /// Settings of the recording process.
    pub settings: Settings,
    /// Call sites: each a few indices into `frames`.
    pub sites: Vec<Vec<u32>>,
    /// Source lines.
    pub frames: Vec<Frame>,
    /// When optimizer steps ended, in microseconds since 1970, with their device.
    pub steps: Vec<(u32, u64)>,
    /// How much of the file was used.
    pub coverage: Coverage,
    /// What was odd, in words; empty for an ordinary file.
    pub notes: Vec<String>,
}

impl Recording {
    pub(super) fn empty(format: Format) -> Recording {
        Recording {
            format,
            devices: Vec::new(),
            settings: Settings::default(),
            sites: Vec::new(),
            frames: Vec::new(),
            steps: Vec::new(),
            coverage: Coverage::Whole,
            notes: Vec::new(),
        }
    }

    /// A call site in one line: `block (model.py:31)`.
    pub fn site(&self, site: u32) -> Option<String> {
        let lines = self.sites.get(site as usize)?.iter().filter_map(|i| self.frames.get(*i as usize));
        let one = |f: &Frame| {
            let file = f.file.rsplit('/').next().unwrap_or(&f.file);
            format!("{} ({file}:{})", f.name, f.line)
        };
        let text: Vec<String> = lines.map(one).collect();
        (!text.is_empty()).then(|| text.join(" < "))
    }
}
