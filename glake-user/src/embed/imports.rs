//! Memory of other processes, mapped here as one range.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Kind, Result};
use crate::gpu::{Device, Handle};

struct Import {
    device: Arc<dyn Device>,
    size: u64,
    handles: Vec<Handle>,
}

static IMPORTS: Mutex<BTreeMap<u64, Import>> = Mutex::new(BTreeMap::new());

/// Maps the handles behind `parts`, each with its bytes, side by side on `device`. The descriptors may be closed afterwards.
pub fn import(device: &Arc<dyn Device>, parts: &[(BorrowedFd<'_>, u64)]) -> Result<u64> {
    let size = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.1)).filter(|sum| *sum > 0);
    let size = size.ok_or_else(|| Error::new(Kind::BadInput, "importing no bytes, or too many"))?;
    let mut import = Import { device: Arc::clone(device), size, handles: Vec::new() };
    let address = device.reserve(size)?;
    match import.map(address, parts) {
        Ok(()) => {
            IMPORTS.lock().unwrap_or_else(PoisonError::into_inner).insert(address, import);
            Ok(address)
        }
        Err(e) => {
            import.undo(address, parts);
            Err(e)
        }
    }
}

/// Unmaps what [`import`] mapped at `address`. The caller knows that no work uses it any more. `Misuse` for another address.
pub fn close(address: u64) -> Result<()> {
    let import = IMPORTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    let Some(import) = import else {
        return Err(Error::new(Kind::Misuse, format!("closing {address:#x}, which is no imported memory")));
    };
    import.device.unmap(address, import.size)?;
    for handle in &import.handles {
        import.device.release(*handle)?;
    }
    import.device.unreserve(address, import.size)
}

impl Import {
    fn map(&mut self, address: u64, parts: &[(BorrowedFd<'_>, u64)]) -> Result<()> {
        let mut at = address;
        for (fd, size) in parts {
            let handle = self.device.import(*fd, *size)?;
            self.handles.push(handle);
            self.device.map(at, *size, handle)?;
            at += size;
        }
        self.device.set_access(address, self.size)
    }

    /// After a failure: what was mapped is unmapped, and every handle released. Each may fail where the call before it did.
    fn undo(&self, address: u64, parts: &[(BorrowedFd<'_>, u64)]) {
        let mut at = address;
        for (handle, (_, size)) in self.handles.iter().zip(parts) {
            let _ = self.device.unmap(at, *size);
            let _ = self.device.release(*handle);
            at += size;
        }
        let _ = self.device.unreserve(address, self.size);
    }
}

#[cfg(all(test, feature = "standin"))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::gpu::Stream;
    use crate::standin::gpu::{HostGpu, Settings};
    use crate::stitch::{Heap, Options};

    #[test]
    fn a_shared_block_reads_the_same_where_it_is_imported_and_is_pinned_until_its_free() {
        let device: Arc<dyn Device> = Arc::new(HostGpu::new(Settings::default()).unwrap());
        let heap = Heap::new(Arc::clone(&device), Options::default()).unwrap();
        let block = heap.allocate(40 << 20, Stream(0)).unwrap();
        device.write(Stream(0), block.ptr + (39 << 20), b"stitched").unwrap();
        let shared = heap.share(block.ptr + 512, 64).unwrap();
        assert_eq!(shared.offset, 512);
        let parts: Vec<_> = shared.parts.iter().map(|(fd, size)| (fd.as_fd(), *size)).collect();
        let there = import(&device, &parts).unwrap();
        let mut read = [0; 8];
        device.read(Stream(0), there + (39 << 20), &mut read).unwrap();
        assert_eq!(&read, b"stitched");
        assert!(heap.map().handles.iter().any(|h| h.pinned));
        heap.free(block.ptr, Stream(0)).unwrap();
        assert!(heap.map().handles.iter().all(|h| !h.pinned));
        close(there).unwrap();
        assert_eq!(close(there).unwrap_err().kind(), Kind::Misuse);
    }

    #[test]
    fn a_block_of_too_many_handles_is_refused_and_nothing_is_pinned() {
        let device: Arc<dyn Device> = Arc::new(HostGpu::new(Settings::default()).unwrap());
        let heap = Heap::new(device, Options::default()).unwrap();
        let block = heap.allocate(64 << 20, Stream(0)).unwrap();
        let e = heap.share(block.ptr, 2).unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(heap.map().handles.iter().all(|h| !h.pinned));
    }

    #[test]
    fn an_import_that_fails_half_way_leaves_nothing_behind() {
        let host = Arc::new(HostGpu::new(Settings::default()).unwrap());
        let device: Arc<dyn Device> = Arc::clone(&host) as Arc<dyn Device>;
        let heap = Heap::new(Arc::clone(&device), Options::default()).unwrap();
        let block = heap.allocate(40 << 20, Stream(0)).unwrap();
        let shared = heap.share(block.ptr, 64).unwrap();
        let before = host.held();
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut parts: Vec<_> = shared.parts.iter().map(|(fd, size)| (fd.as_fd(), *size)).collect();
        parts.push((file.as_fd(), 3));
        assert!(import(&device, &parts).is_err());
        assert_eq!(host.held(), before);
    }
}
