//! Weights for Python: a checkpoint's tensors, and their bytes brought to addresses that Python owns.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use glake::copy::safetensors::{self, Checkpoint, Dtype, Tensor};
use glake::copy::{Engine, Image, Span, Wish, engine};
use glake::embed::Process;
use glake::error::{Error, Kind, Result};
use glake::gpu::Stream;
use pyo3::prelude::*;

use crate::raise;

/// The engine of a GPU, with its pinned ring, for as long as the process lives: making the ring costs more than a small file.
fn engine_of(ordinal: u32) -> Result<Arc<Engine>> {
    static ENGINES: OnceLock<Mutex<HashMap<u32, Arc<Engine>>>> = OnceLock::new();
    let mut all = ENGINES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = all.get(&ordinal) {
        return Ok(Arc::clone(engine));
    }
    let device = match Process::get().device(ordinal) {
        Some(device) => device,
        None => glake::standin::device(ordinal)?,
    };
    let engine = Arc::new(Engine::new(device, engine::rates_file().as_deref()));
    glake::embed::tell();
    all.insert(ordinal, Arc::clone(&engine));
    Ok(engine)
}

/// A limit in seconds as a duration.
fn limit(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|e| Error::new(Kind::BadInput, format!("a limit of {seconds} s")).because(e))
}

/// A tensor to save: name, element type, shape, bytes, address.
type Saved = (String, String, Vec<u64>, u64, u64);

/// Writes tensors in this order to a safetensors file: whole under its name, or not at all. Begins after the stream's earlier
/// work; `(bytes, seconds, notes)`.
#[pyfunction]
#[pyo3(signature = (path, tensors, metadata, device, stream, limit_s))]
pub(crate) fn save(
    py: Python<'_>,
    path: PathBuf,
    tensors: Vec<Saved>,
    metadata: BTreeMap<String, String>,
    device: u32,
    stream: u64,
    limit_s: f64,
) -> PyResult<(u64, f64, Vec<String>)> {
    py.detach(|| {
        let (described, addresses) = described(tensors)?;
        let (header, size) = safetensors::write(&described, &metadata)?;
        let mut offset = header.len() as u64;
        let spans = described.iter().zip(addresses).map(|(t, address)| {
            let span = Span { offset, size: t.size, address };
            offset += t.size;
            span
        });
        let image = Image { spans: spans.collect(), header, size };
        let wish = Wish { limit: Some(limit(limit_s)?), after: Some(Stream(stream)), ..Wish::default() };
        let moved = engine_of(device)?.write(&path, image, &wish, &mut |_| {})?;
        Ok((moved.bytes, moved.elapsed.as_secs_f64(), moved.notes))
    })
    .map_err(|e| raise(&e))
}

/// Tensors as a header describes them, and their addresses.
fn described(tensors: Vec<Saved>) -> Result<(Vec<Tensor>, Vec<u64>)> {
    let one = |(name, dtype, shape, size, address): Saved| {
        let known = Dtype::named(&dtype);
        let dtype = known
            .ok_or_else(|| Error::new(Kind::BadInput, format!("the format has no element type {dtype:?}")))?;
        Ok((Tensor { name, dtype, shape, offset: 0, size }, address))
    };
    let all = tensors.into_iter().map(one).collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().unzip())
}

/// A checkpoint, opened and its headers checked.
#[pyclass(name = "Checkpoint", frozen)]
pub(crate) struct PyCheckpoint {
    inner: Checkpoint,
}

/// Name, element type, shape, file, offset in it, bytes.
type Described = (String, &'static str, Vec<u64>, usize, u64, u64);

#[pymethods]
impl PyCheckpoint {
    /// Opens a file, an index or a folder.
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<PyCheckpoint> {
        let inner = py.detach(|| Checkpoint::open(&path)).map_err(|e| raise(&e))?;
        Ok(PyCheckpoint { inner })
    }

    /// The files.
    fn files(&self) -> Vec<PathBuf> {
        self.inner.shards.iter().map(|s| s.source.path().to_owned()).collect()
    }

    /// Every tensor, in the order of the files and of the bytes in them.
    fn tensors(&self) -> Vec<Described> {
        let shards = self.inner.shards.iter().enumerate();
        let of = |(shard, s): (usize, &glake::copy::safetensors::checkpoint::Shard)| -> Vec<Described> {
            let one = |t: &glake::copy::safetensors::Tensor| {
                (t.name.clone(), t.dtype.name, t.shape.clone(), shard, t.offset, t.size)
            };
            s.header.tensors.iter().map(one).collect()
        };
        shards.flat_map(of).collect()
    }

    /// The notes of one file.
    fn metadata(&self, file: usize) -> BTreeMap<String, String> {
        self.inner.shards.get(file).map(|s| s.header.metadata.clone()).unwrap_or_default()
    }

    /// Brings bytes of one file to a GPU: `(offset in the file, size, address)` each. Begins after the stream's earlier work
    /// and returns when all bytes are there; `(bytes, seconds, route, notes)`.
    #[pyo3(signature = (file, spans, device, stream, limit_s))]
    fn read(
        &self,
        py: Python<'_>,
        file: usize,
        spans: Vec<(u64, u64, u64)>,
        device: u32,
        stream: u64,
        limit_s: f64,
    ) -> PyResult<(u64, f64, &'static str, Vec<String>)> {
        py.detach(|| {
            let shard = self.inner.shards.get(file).ok_or_else(|| {
                Error::new(Kind::BadInput, format!("file {file} of {}", self.inner.shards.len()))
            })?;
            let wish = Wish { limit: Some(limit(limit_s)?), after: Some(Stream(stream)), ..Wish::default() };
            let spans: Vec<Span> =
                spans.into_iter().map(|(offset, size, address)| Span { offset, size, address }).collect();
            let (decision, moved) = engine_of(device)?.read(&shard.source, &spans, &wish, &mut |_| {})?;
            Ok((moved.bytes, moved.elapsed.as_secs_f64(), decision.way.name(), moved.notes))
        })
        .map_err(|e| raise(&e))
    }
}
