//! What the tests of copies share: files with known bytes, folders on a disk, a small host GPU.

use std::path::Path;
use std::sync::Arc;

use glake::copy::Source;
use glake::standin::gpu::{HostGpu, Settings};

/// A host GPU of 256 MiB that runs `lag_ns` behind the host.
///
/// # Panics
/// Where there is no memory for it.
pub fn host(lag_ns: u64) -> Arc<HostGpu> {
    let settings = Settings { capacity: 256 << 20, lag_ns, ..Settings::default() };
    Arc::new(HostGpu::new(settings).expect("as documented"))
}

/// Bytes that differ from place to place.
pub fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[6]).collect()
}

/// A file of `size` bytes of the pattern, and the bytes.
///
/// # Panics
/// Where it cannot be written and opened.
pub fn source(folder: &Path, size: usize) -> (Arc<Source>, Vec<u8>) {
    let bytes = pattern(size);
    let path = folder.join("source");
    std::fs::write(&path, &bytes).expect("as documented");
    (Arc::new(Source::open(&path).expect("as documented")), bytes)
}

/// A folder on a disk, where the file system takes O_DIRECT: beside what was built. `/tmp` may be memory.
///
/// # Panics
/// Where none can be made.
pub fn on_disk() -> tempfile::TempDir {
    let program = std::env::current_exe().expect("as documented");
    // TARGET/PROFILE/deps/PROGRAM.
    let folder = program.ancestors().nth(3).expect("as documented").join("tmp");
    std::fs::create_dir_all(&folder).expect("as documented");
    tempfile::tempdir_in(folder).expect("as documented")
}
