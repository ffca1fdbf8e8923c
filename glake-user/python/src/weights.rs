//! Weights for Python: a checkpoint's tensors, and their bytes brought to addresses that Python owns.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use glake::copy::safetensors::Checkpoint;
use glake::copy::{Engine, Span, Wish, engine};
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
    all.insert(ordinal, Arc::clone(&engine));
    Ok(engine)
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
    fn metadata(&self, file: usize) -> std::collections::BTreeMap<String, String> {
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
            let limit = Duration::try_from_secs_f64(limit_s)
                .map_err(|e| Error::new(Kind::BadInput, format!("a limit of {limit_s} s")).because(e))?;
            let wish = Wish { limit: Some(limit), after: Some(Stream(stream)), ..Wish::default() };
            let spans: Vec<Span> =
                spans.into_iter().map(|(offset, size, address)| Span { offset, size, address }).collect();
            let (decision, moved) = engine_of(device)?.read(&shard.source, &spans, &wish, &mut |_| {})?;
            Ok((moved.bytes, moved.elapsed.as_secs_f64(), decision.way.name(), moved.notes))
        })
        .map_err(|e| raise(&e))
    }
}
