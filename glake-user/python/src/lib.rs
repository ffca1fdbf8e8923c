//! `glake._core`: the allocator of this process for Python, and GLake's command line. `glake/__init__.py` is what people import.

mod abi;
mod pluggable;
mod weights;

use glake::embed::{self, Process};
use glake::error::{Error, Kind};
use glake::stitch::options::{OptionInfo, variable};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

fn raise(e: &Error) -> PyErr {
    let text = e.chain();
    match e.kind() {
        Kind::BadInput => PyValueError::new_err(text),
        Kind::Exhausted => PyMemoryError::new_err(text),
        Kind::Missing | Kind::Denied | Kind::Io => PyOSError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// The address of the table in `adapter/glake_api.h`.
#[pyfunction]
fn api_address() -> usize {
    &raw const abi::API as usize
}

/// `(mode, why)`: "off", "observe" or "on", and what decided it.
#[pyfunction]
fn mode() -> PyResult<(&'static str, &'static str)> {
    embed::mode().map(|(mode, why)| (mode.name(), why)).map_err(|e| raise(&e))
}

#[pyfunction]
fn set_option(name: &str, value: &str) -> PyResult<bool> {
    let process = Process::get();
    process.set(name, value).map_err(|e| raise(&e))?;
    process.config().info(name).map(|info| info.works).map_err(|e| raise(&e))
}

#[pyfunction]
fn get_option(name: &str) -> PyResult<String> {
    Process::get().config().info(name).map(|info| info.value).map_err(|e| raise(&e))
}

/// Every option: name, alias, value, what it takes, its variable, whether its part exists.
#[pyfunction]
fn options(py: Python<'_>) -> PyResult<Vec<Py<PyDict>>> {
    let one = |info: OptionInfo| {
        let dict = PyDict::new(py);
        dict.set_item("name", info.name)?;
        dict.set_item("alias", info.alias)?;
        dict.set_item("value", info.value)?;
        dict.set_item("takes", info.takes)?;
        dict.set_item("variable", variable(info.name))?;
        dict.set_item("works", info.works)?;
        Ok(dict.unbind())
    };
    Process::get().config().all().into_iter().map(one).collect()
}

/// Makes the heap of a GPU ready.
#[pyfunction]
fn open(py: Python<'_>, device: u32) -> PyResult<()> {
    py.detach(|| Process::get().heap(device).map(|_| ())).map_err(|e| raise(&e))
}

/// The counters of every heap, as JSON: `{"0": {...}}`.
#[pyfunction]
fn stats(py: Python<'_>) -> String {
    py.detach(|| {
        let all = Process::get().stats().into_iter();
        let one = |(ordinal, s): (u32, glake::stitch::Stats)| {
            let mut value = serde_json::to_value(&s).unwrap_or_default();
            value["fragmentation_ratio"] = s.fragmentation().into();
            (ordinal.to_string(), value)
        };
        serde_json::Value::Object(all.map(one).collect()).to_string()
    })
}

/// The address map of one heap, as JSON.
#[pyfunction]
fn map(py: Python<'_>, device: u32) -> PyResult<String> {
    py.detach(|| Ok(serde_json::to_string(&Process::get().heap(device)?.map()).unwrap_or_default()))
        .map_err(|e: Error| raise(&e))
}

/// `(largest free range before, after, bytes remapped)`.
#[pyfunction]
fn defragment(py: Python<'_>, device: u32) -> PyResult<(u64, u64, u64)> {
    py.detach(|| Process::get().heap(device)?.defragment())
        .map(|d| (d.largest_before, d.largest_after, d.remapped))
        .map_err(|e| raise(&e))
}

/// Gives idle memory back to the driver; the bytes.
#[pyfunction]
fn trim(py: Python<'_>, device: u32) -> PyResult<u64> {
    py.detach(|| Process::get().heap(device)?.trim()).map_err(|e| raise(&e))
}

/// `(allocated address, rounded size)`: for tests, and for code that manages raw GPU memory.
#[pyfunction]
#[pyo3(signature = (size, device = 0, stream = 0))]
fn allocate(py: Python<'_>, size: u64, device: u32, stream: u64) -> PyResult<(u64, u64)> {
    let block = py.detach(|| Process::get().allocate(device, size, glake::gpu::Stream(stream)));
    block.map(|b| (b.ptr, b.size)).map_err(|e| raise(&e))
}

#[pyfunction]
#[pyo3(signature = (address, device = 0, stream = 0))]
fn free(py: Python<'_>, address: u64, device: u32, stream: u64) -> PyResult<()> {
    py.detach(|| Process::get().free(device, address, glake::gpu::Stream(stream))).map_err(|e| raise(&e))
}

#[pyfunction]
fn say_once(key: &str, line: &str) {
    embed::say_once(key, line);
}

#[pyfunction]
fn fell_back(why: &str) {
    embed::fell_back(why);
}

#[pyfunction]
fn fallbacks() -> u64 {
    Process::get().fallbacks()
}

/// Runs `glake ARGUMENTS`; the first one is the program's name. The exit code.
#[pyfunction]
fn cli(py: Python<'_>, arguments: Vec<String>) -> u8 {
    py.detach(|| glake::cli::run_with(arguments))
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<weights::PyCheckpoint>()?;
    module.add_function(wrap_pyfunction!(weights::save, module)?)?;
    module.add_function(wrap_pyfunction!(api_address, module)?)?;
    module.add_function(wrap_pyfunction!(mode, module)?)?;
    module.add_function(wrap_pyfunction!(set_option, module)?)?;
    module.add_function(wrap_pyfunction!(get_option, module)?)?;
    module.add_function(wrap_pyfunction!(options, module)?)?;
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    module.add_function(wrap_pyfunction!(map, module)?)?;
    module.add_function(wrap_pyfunction!(defragment, module)?)?;
    module.add_function(wrap_pyfunction!(trim, module)?)?;
    module.add_function(wrap_pyfunction!(allocate, module)?)?;
    module.add_function(wrap_pyfunction!(free, module)?)?;
    module.add_function(wrap_pyfunction!(say_once, module)?)?;
    module.add_function(wrap_pyfunction!(fell_back, module)?)?;
    module.add_function(wrap_pyfunction!(fallbacks, module)?)?;
    module.add_function(wrap_pyfunction!(cli, module)?)
}
