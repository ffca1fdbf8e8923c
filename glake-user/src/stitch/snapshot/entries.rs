//! Trace entries and call stacks, taken out of the pickle's tree as they are completed.

use std::collections::HashMap;

use super::value::{Heap, Value};

/// What a trace entry says happened. The names are torch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `alloc`
    Alloc,
    /// `free_requested`: the program let go.
    FreeRequested,
    /// `free_completed`: every stream is done with it.
    FreeCompleted,
    /// `segment_alloc`: memory came from the driver.
    SegmentAlloc,
    /// `segment_free`: memory went back to the driver.
    SegmentFree,
    /// `segment_map`: an expandable segment grew.
    SegmentMap,
    /// `segment_unmap`: an expandable segment gave memory back.
    SegmentUnmap,
    /// `snapshot`
    Snapshot,
    /// `oom`: an allocation failed.
    Oom,
    /// An action of a torch that is newer than this program.
    Unknown,
}

/// One trace entry as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub action: Action,
    /// The address; for `oom` the bytes that were free at the driver.
    pub addr: u64,
    /// Bytes: as requested for alloc and free, as taken from the driver for segments.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// Microseconds since 1970; 0 where the file has no times.
    pub time_us: u64,
    /// Index into the call sites; `u32::MAX` where none was recorded.
    pub site: u32,
}

/// Where in the program an allocation was made: the innermost lines outside torch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Function.
    pub name: String,
    /// File.
    pub file: String,
    /// Line; 0 where unknown.
    pub line: u64,
}

/// No call site.
pub const NO_SITE: u32 = u32::MAX;
/// Lines of the program's own kept of each call stack.
const FRAMES_KEPT: usize = 3;
/// A dict with more keys is no trace entry.
const KEYS_MOST: usize = 64;

/// Everything taken out of the tree.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) entries: Vec<Entry>,
    /// Call sites, each a few indices into `frames`.
    pub(super) sites: Vec<Vec<u32>>,
    pub(super) frames: Vec<Frame>,
    site_of: HashMap<Vec<u32>, u32>,
    frame_of: HashMap<Frame, u32>,
    text_held: u64,
    /// Actions this program does not know, with how often they came.
    pub(super) unknown: HashMap<String, u64>,
}

impl Entries {
    pub(super) fn held(&self) -> u64 {
        (self.entries.len() * size_of::<Entry>()) as u64 + self.text_held
    }

    /// A dict that is a trace entry or a stack frame, as such.
    pub(super) fn recognize(&mut self, heap: &Heap, value: Value) -> Option<Value> {
        // Real entries have about ten keys; looking for keys in a huge dict again and again would be quadratic.
        let pairs = heap.dict(value).filter(|p| p.len() <= KEYS_MOST)?;
        if heap.key(value, "action").is_some() {
            let index = self.entries.len() as u32;
            self.entries.push(Entry {
                action: Action::Unknown,
                addr: 0,
                size: 0,
                stream: 0,
                time_us: 0,
                site: NO_SITE,
            });
            for (key, value) in pairs {
                self.set(heap, index, *key, *value);
            }
            return Some(Value::Event(index));
        }
        if pairs.len() >= 3 && heap.key(value, "filename").is_some() && heap.key(value, "line").is_some() {
            return self.frame(heap, value);
        }
        None
    }

    /// Keys that come after a trace entry was recognized.
    pub(super) fn amend(&mut self, heap: &Heap, target: Value, pairs: &[Value]) {
        if let Value::Event(index) = target {
            for pair in pairs.chunks_exact(2) {
                self.set(heap, index, pair[0], pair[1]);
            }
        }
    }

    fn set(&mut self, heap: &Heap, index: u32, key: Value, value: Value) {
        let action = match (heap.text(key), heap.text(value)) {
            (Some("action"), Some(text)) => self.action(text),
            _ => Action::Unknown,
        };
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        match heap.text(key) {
            Some("action") => entry.action = action,
            // The key of an out-of-memory entry; what it holds is the free memory of the device.
            Some("addr" | "device_free") => entry.addr = value.as_u64().unwrap_or(0),
            Some("size") => entry.size = value.as_u64().unwrap_or(0),
            Some("stream") => entry.stream = value.as_u64().unwrap_or(0),
            Some("time_us") => entry.time_us = value.as_u64().unwrap_or(0),
            Some("frames") => {
                if let Value::Stack(site) = value {
                    entry.site = site;
                }
            }
            _ => {}
        }
    }

    fn action(&mut self, text: &str) -> Action {
        match text {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            // The oldest files know one kind of free only.
            "free_completed" | "free" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "snapshot" => Action::Snapshot,
            "oom" => Action::Oom,
            _ => {
                if self.unknown.len() < 64 {
                    *self.unknown.entry(text.chars().take(64).collect()).or_default() += 1;
                }
                Action::Unknown
            }
        }
    }

    fn frame(&mut self, heap: &Heap, value: Value) -> Option<Value> {
        let text = |key| heap.key(value, key).and_then(|v| heap.text(v)).unwrap_or("").to_string();
        let frame = Frame {
            name: text("name"),
            file: text("filename"),
            line: heap.number(value, "line").unwrap_or(0),
        };
        if let Some(&known) = self.frame_of.get(&frame) {
            return Some(Value::Frame(known));
        }
        let index = self.frames.len() as u32;
        self.text_held += 2 * (frame.name.len() + frame.file.len() + 80) as u64;
        self.frames.push(frame.clone());
        self.frame_of.insert(frame, index);
        Some(Value::Frame(index))
    }

    /// A list that holds nothing but frames, as one call site.
    pub(super) fn call_stack(&mut self, heap: &Heap, value: Value) -> Option<Value> {
        let items = heap.list(value)?;
        let mut frames = Vec::with_capacity(items.len());
        for item in items {
            let Value::Frame(index) = item else { return None };
            frames.push(*index);
        }
        Some(Value::Stack(self.site(&frames)))
    }

    fn site(&mut self, frames: &[u32]) -> u32 {
        let python = |i: &&u32| self.frames.get(**i as usize).is_some_and(|f| f.file.ends_with(".py"));
        let own = |i: &&u32| self.frames.get(**i as usize).is_some_and(|f| !in_torch(&f.file));
        let mut kept: Vec<u32> =
            frames.iter().filter(python).filter(own).take(FRAMES_KEPT).copied().collect();
        if kept.is_empty() {
            kept = frames.iter().filter(python).take(FRAMES_KEPT).copied().collect();
        }
        if kept.is_empty() {
            return NO_SITE;
        }
        if let Some(&known) = self.site_of.get(&kept) {
            return known;
        }
        let index = self.sites.len() as u32;
        self.text_held += 2 * (kept.len() * 4 + 64) as u64;
        self.sites.push(kept.clone());
        self.site_of.insert(kept, index);
        index
    }
}

/// Code of torch itself: a line there says nothing about the program.
fn in_torch(file: &str) -> bool {
    file.contains("/torch/") || file.contains("<frozen ") || file.starts_with("torch/")
}
