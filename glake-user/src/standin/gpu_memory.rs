//! The memory of the host GPU: one sealed memory file, handles as parts of it, and where they are mapped.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

use crate::error::{Error, Kind, Result};
use crate::gpu::Handle;
use crate::sys::mmap::{MemoryFile, Reservation};

/// The file is far larger than the capacity, so that parts of it are never used twice while something may still be
/// mapped; only touched pages exist.
const FILE_BYTES: u64 = 1 << 46;

#[derive(Debug)]
struct Piece {
    /// `None`: the GPU's own file. Imported pieces bring theirs.
    foreign: Option<MemoryFile>,
    offset: u64,
    size: u64,
    maps: u32,
    released: bool,
}

#[derive(Debug, Clone, Copy)]
struct Mapped {
    size: u64,
    handle: Handle,
    /// Bit N: GPU N may use it.
    peers: u64,
}

pub(super) struct GpuMemory {
    file: MemoryFile,
    next_offset: u64,
    next_handle: u64,
    pieces: HashMap<Handle, Piece>,
    /// By first address.
    reservations: BTreeMap<u64, Reservation>,
    mapped: BTreeMap<u64, Mapped>,
    /// Bytes of physical memory held.
    pub(super) held: u64,
    pub(super) capacity: u64,
    pub(super) granularity: u64,
    /// Bit N: GPU N gets access to ranges from now on.
    peers: u64,
}

impl GpuMemory {
    pub(super) fn new(capacity: u64, granularity: u64) -> Result<GpuMemory> {
        Ok(GpuMemory {
            file: MemoryFile::new("glake-host-gpu", FILE_BYTES)?,
            next_offset: 0,
            next_handle: 1,
            pieces: HashMap::new(),
            reservations: BTreeMap::new(),
            mapped: BTreeMap::new(),
            held: 0,
            capacity,
            granularity,
            peers: 0,
        })
    }

    /// Gives a peer access from the next [`GpuMemory::set_access`] on.
    pub(super) fn enable_peer(&mut self, peer: u32) {
        self.peers |= 1 << peer;
    }

    /// Whether an address lies in this GPU's address space.
    pub(super) fn holds(&self, address: u64) -> bool {
        let last = self.reservations.range(..=address).next_back();
        last.is_some_and(|(start, r)| address < start + r.size())
    }

    /// Whether a peer may use the whole range.
    pub(super) fn is_open_to(&self, peer: usize, address: u64, size: u64) -> bool {
        let first = self.mapped.range(..=address).next_back().map_or(address, |(start, _)| *start);
        let mut next = address;
        for (start, mapped) in self.mapped.range(first..address + size) {
            if *start > next || mapped.peers & (1 << peer) == 0 {
                return false;
            }
            next = start + mapped.size;
        }
        next >= address + size
    }

    /// Refuses sizes and addresses that are not whole granules.
    fn whole(&self, value: u64, what: &str) -> Result<()> {
        if value == 0 || !value.is_multiple_of(self.granularity) {
            let doing = format!("{what} {value:#x} is not a multiple of {}", self.granularity);
            return Err(Error::new(Kind::Misuse, doing));
        }
        Ok(())
    }

    pub(super) fn reserve(&mut self, size: u64) -> Result<u64> {
        self.whole(size, "reservation of")?;
        // One granule more, so that the start can be aligned as the driver does.
        let range = Reservation::new(size + self.granularity)?;
        let start = range.start().next_multiple_of(self.granularity);
        self.reservations.insert(start, range);
        Ok(start)
    }

    pub(super) fn unreserve(&mut self, address: u64, size: u64) -> Result<()> {
        let known = self.reservations.get(&address).map(|r| r.size() - self.granularity);
        if known != Some(size) {
            let doing = format!("giving back {size} bytes at {address:#x}, which is no reservation");
            return Err(Error::new(Kind::Misuse, doing));
        }
        if let Some((at, _)) = self.mapped.range(address..address + size).next() {
            let doing = format!("giving back address space at {address:#x} while {at:#x} is mapped");
            return Err(Error::new(Kind::Misuse, doing));
        }
        self.reservations.remove(&address);
        Ok(())
    }

    pub(super) fn create(&mut self, size: u64) -> Result<Handle> {
        self.whole(size, "handle of")?;
        if self.held + size > self.capacity || self.next_offset + size > FILE_BYTES {
            let doing = format!("creating {size} bytes of {} free", self.capacity - self.held);
            return Err(Error::new(Kind::Exhausted, doing));
        }
        let offset = self.next_offset;
        self.next_offset += size;
        self.held += size;
        Ok(self.add(Piece { foreign: None, offset, size, maps: 0, released: false }))
    }

    fn add(&mut self, piece: Piece) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.pieces.insert(handle, piece);
        handle
    }

    pub(super) fn import(&mut self, fd: OwnedFd, size: u64) -> Result<Handle> {
        self.whole(size, "import of")?;
        let file = MemoryFile::from_fd(fd)?;
        Ok(self.add(Piece { foreign: Some(file), offset: 0, size, maps: 0, released: false }))
    }

    /// The exported file holds the bytes of the handle at the time of export: the host GPU's pieces are parts of one
    /// file, and only whole files can be handed over.
    pub(super) fn export(&mut self, handle: Handle) -> Result<OwnedFd> {
        let piece = self.piece(handle)?;
        if let Some(file) = &piece.foreign {
            return file.duplicate();
        }
        let (offset, size) = (piece.offset, piece.size);
        let file = MemoryFile::new("glake-host-gpu-export", size)?;
        self.move_into(handle, offset, size, file)
    }

    /// Moves a piece into a file of its own and maps that wherever the piece is mapped, so that both sides share it.
    fn move_into(&mut self, handle: Handle, offset: u64, size: u64, file: MemoryFile) -> Result<OwnedFd> {
        let mut copy = Reservation::new(2 * size)?;
        let (from, to) = (copy.start(), copy.start() + size);
        copy.map(from, size, &self.file, offset)?;
        copy.allow(from, size)?;
        copy.map(to, size, &file, 0)?;
        copy.allow(to, size)?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        copy.read(from, &mut bytes)?;
        copy.write(to, &bytes)?;
        let places: Vec<u64> =
            self.mapped.iter().filter(|(_, m)| m.handle == handle).map(|(a, _)| *a).collect();
        for address in places {
            let range = holding(&mut self.reservations, address, size)?;
            let open = range.is_open(address, size);
            range.map(address, size, &file, 0)?;
            if open {
                range.allow(address, size)?;
            }
        }
        self.file.drop_pages(offset, size)?;
        let out = file.duplicate()?;
        if let Some(piece) = self.pieces.get_mut(&handle) {
            piece.foreign = Some(file);
            piece.offset = 0;
        }
        Ok(out)
    }

    fn piece(&self, handle: Handle) -> Result<&Piece> {
        self.pieces.get(&handle).filter(|p| !p.released).ok_or_else(|| {
            Error::new(Kind::Misuse, format!("handle {} is unknown or was released", handle.0))
        })
    }

    pub(super) fn release(&mut self, handle: Handle) -> Result<()> {
        self.piece(handle)?;
        if let Some(piece) = self.pieces.get_mut(&handle) {
            piece.released = true;
        }
        self.drop_if_unused(handle)
    }

    /// Physical memory lives while it has a handle or a mapping.
    fn drop_if_unused(&mut self, handle: Handle) -> Result<()> {
        let gone = self.pieces.get(&handle).is_some_and(|p| p.released && p.maps == 0);
        if let Some(piece) = gone.then(|| self.pieces.remove(&handle)).flatten() {
            if piece.foreign.is_none() {
                self.file.drop_pages(piece.offset, piece.size)?;
            }
            self.held = self.held.saturating_sub(piece.size);
        }
        Ok(())
    }

    pub(super) fn map(&mut self, address: u64, size: u64, handle: Handle) -> Result<()> {
        self.whole(address, "address")?;
        let piece = self.piece(handle)?;
        if piece.size != size {
            let doing = format!("mapping {size} bytes of a handle of {}: only the whole can be", piece.size);
            return Err(Error::new(Kind::Unsupported, doing));
        }
        if let Some((at, _)) = self.overlapping(address, size) {
            let doing = format!("mapping {size} bytes at {address:#x}, where {at:#x} is mapped already");
            return Err(Error::new(Kind::Misuse, doing));
        }
        let range = holding(&mut self.reservations, address, size)?;
        if let Some(piece) = self.pieces.get_mut(&handle) {
            range.map(address, size, piece.foreign.as_ref().unwrap_or(&self.file), piece.offset)?;
            piece.maps += 1;
        }
        self.mapped.insert(address, Mapped { size, handle, peers: 0 });
        Ok(())
    }

    fn overlapping(&self, address: u64, size: u64) -> Option<(u64, Mapped)> {
        let last = self.mapped.range(..address + size).next_back();
        last.filter(|(a, m)| *a + m.size > address).map(|(a, m)| (*a, *m))
    }

    /// The mappings that tile the range exactly.
    fn tiles(&self, address: u64, size: u64, doing: &str) -> Result<Vec<(u64, Mapped)>> {
        let mut next = address;
        let mut found = Vec::new();
        while next < address + size {
            let Some(m) = self.mapped.get(&next) else {
                let what = format!("{doing} {size} bytes at {address:#x}: no mapping starts at {next:#x}");
                return Err(Error::new(Kind::Misuse, what));
            };
            found.push((next, *m));
            next += m.size;
        }
        if next != address + size {
            let what =
                format!("{doing} {size} bytes at {address:#x} cuts the mapping that ends at {next:#x}");
            return Err(Error::new(Kind::Misuse, what));
        }
        Ok(found)
    }

    /// How many handles a range holds: what set access and unmap are paid by.
    pub(super) fn handles(&self, address: u64, size: u64) -> Vec<u64> {
        self.mapped.range(address..address + size).map(|(_, m)| m.size).collect()
    }

    pub(super) fn set_access(&mut self, address: u64, size: u64) -> Result<()> {
        for (at, mapped) in self.tiles(address, size, "granting access to")? {
            holding(&mut self.reservations, at, mapped.size)?.allow(at, mapped.size)?;
            if let Some(mapped) = self.mapped.get_mut(&at) {
                mapped.peers = self.peers;
            }
        }
        Ok(())
    }

    pub(super) fn unmap(&mut self, address: u64, size: u64) -> Result<()> {
        for (at, mapped) in self.tiles(address, size, "unmapping")? {
            holding(&mut self.reservations, at, mapped.size)?.clear(at, mapped.size)?;
            self.mapped.remove(&at);
            if let Some(piece) = self.pieces.get_mut(&mapped.handle) {
                piece.maps -= 1;
            }
            self.drop_if_unused(mapped.handle)?;
        }
        Ok(())
    }

    pub(super) fn fill(&mut self, address: u64, size: u64, byte: u8) -> Result<()> {
        holding(&mut self.reservations, address, size)?.fill(address, size, byte)
    }

    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        holding(&mut self.reservations, address, bytes.len() as u64)?.write(address, bytes)
    }

    pub(super) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        holding(&mut self.reservations, address, bytes.len() as u64)?.read(address, bytes)
    }
}

fn holding(all: &mut BTreeMap<u64, Reservation>, address: u64, size: u64) -> Result<&mut Reservation> {
    all.range_mut(..=address)
        .next_back()
        .map(|(_, r)| r)
        .filter(|r| address + size <= r.start() + r.size())
        .ok_or_else(|| {
            Error::new(Kind::Misuse, format!("{size} bytes at {address:#x} are not in a reservation"))
        })
}
