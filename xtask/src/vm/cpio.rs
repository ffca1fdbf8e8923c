//! An initramfs in the "newc" format (kernel: Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeMap;

/// Kind and permission bits of a folder and of a file, as in `st_mode`.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// Files for the guest, by path without a leading slash. Folders on the way are made.
#[derive(Default)]
pub(super) struct Archive {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Archive {
    /// Adds an executable file.
    pub(super) fn file(&mut self, path: &str, bytes: Vec<u8>) {
        self.put(path, FILE, bytes);
    }

    /// Adds an empty folder.
    pub(super) fn folder(&mut self, path: &str) {
        self.put(path, FOLDER, Vec::new());
    }

    /// Whether something is at `path` already.
    pub(super) fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_start_matches('/'))
    }

    fn put(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].to_owned()).or_insert((FOLDER, Vec::new()));
        }
        self.entries.insert(path.to_owned(), (mode, bytes));
    }

    /// The archive's bytes. The map's order puts each folder before what is in it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (inode, (path, (mode, bytes))) in self.entries.iter().enumerate() {
            entry(&mut out, inode + 1, *mode, path, bytes);
        }
        entry(&mut out, 0, 0, "TRAILER!!!", &[]);
        out
    }
}

fn entry(out: &mut Vec<u8>, inode: usize, mode: u32, name: &str, bytes: &[u8]) {
    let links = if mode == FOLDER { 2 } else { 1 };
    let fields = [inode, mode as usize, 0, 0, links, 0, bytes.len(), 0, 0, 0, 0, name.len() + 1, 0];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(bytes);
    pad(out);
}

/// Header with name, and data, each end on a multiple of four bytes.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them_and_every_part_is_aligned() {
        let mut archive = Archive::default();
        archive.file("/bin/tool", b"12345".to_vec());
        archive.folder("bin/empty");
        let bytes = archive.bytes();
        let text = String::from_utf8_lossy(&bytes);
        let at = |s: &str| text.find(s).unwrap();
        assert!(
            at("bin\0") < at("bin/empty\0")
                && at("bin/empty\0") < at("bin/tool\0")
                && at("bin/tool\0") < at("TRAILER!!!")
        );
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(text.matches("070701").count(), 4);
        assert!(archive.has("/bin/tool") && !archive.has("bin/none"));
    }
}
