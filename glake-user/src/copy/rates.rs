//! What was measured on this host: rates of ways and settings, kept in a small file that anybody may delete.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::route::Way;
use crate::error::{Error, Result};

/// The version of the file's layout. Others are not read.
const VERSION: u32 = 1;

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Which way.
    pub way: Way,
    /// The GPU's PCI address, or its name where it has none.
    pub gpu: String,
    /// The disk: the device number of the file's file system, as `major:minor`. Only for ways that read the disk.
    pub disk: Option<String>,
    /// Other GPUs whose links carried parts too.
    #[serde(default)]
    pub peers: usize,
    /// Threads.
    pub lanes: usize,
    /// Bytes of a part.
    pub part_bytes: usize,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Bytes a second, the median of the runs.
    pub bytes_per_second: f64,
    /// CPU seconds for each 10^9 bytes.
    pub cpu_seconds_per_gb: f64,
    /// When, in seconds since 1970.
    pub measured_at: u64,
}

/// All measurements of this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    version: u32,
    /// In the order in which they were made.
    pub rates: Vec<Rate>,
}

impl Default for Rates {
    fn default() -> Self {
        Rates { version: VERSION, rates: Vec::new() }
    }
}

/// `$XDG_CACHE_HOME/glake/routes.json`, or `~/.cache/glake/routes.json`. `None` without either.
pub fn default_path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("glake/routes.json"))
}

impl Rates {
    /// Reads the file. No file: no measurement yet; a file that cannot be read or understood is not used, and the second
    /// value says why.
    pub fn load(path: &Path) -> (Rates, Option<String>) {
        let ignored = |why: String| {
            let note = format!("{}: {why}; not used. `glake bench copy` writes it anew", path.display());
            (Rates::default(), Some(note))
        };
        match std::fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => (Rates::default(), None),
            Err(e) => ignored(e.to_string()),
            Ok(text) => match serde_json::from_slice::<Rates>(&text) {
                Ok(rates) if rates.version == VERSION => (rates.sound(), None),
                Ok(rates) => {
                    ignored(format!("it is of version {}, this program reads {VERSION}", rates.version))
                }
                Err(e) => ignored(format!("it is damaged ({e})")),
            },
        }
    }

    /// Without figures that no measurement can give.
    fn sound(mut self) -> Rates {
        self.rates.retain(|r| {
            r.bytes_per_second.is_finite()
                && r.bytes_per_second > 0.0
                && r.lanes > 0
                && r.part_bytes.is_power_of_two()
        });
        self
    }

    /// Writes the file as a whole or not at all.
    pub fn save(&self, path: &Path) -> Result<()> {
        let doing = |e| Error::os(format!("writing {}", path.display()), e);
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(doing)?;
        let text = serde_json::to_vec_pretty(self).map_err(|e| doing(e.into()))?;
        let part = folder.join(format!(".routes.json.{}", std::process::id()));
        std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path)).map_err(doing)
    }

    /// Takes in new measurements; those of the same way, GPU, disk and settings are replaced.
    pub fn add(&mut self, new: Vec<Rate>) {
        for rate in new {
            let same = |r: &Rate| {
                (r.way, &r.gpu, &r.disk, r.peers, r.lanes, r.part_bytes)
                    == (rate.way, &rate.gpu, &rate.disk, rate.peers, rate.lanes, rate.part_bytes)
            };
            self.rates.retain(|r| !same(r));
            self.rates.push(rate);
        }
    }

    /// The fastest measured setting of a way with as many peers; for ways that read the disk, on that disk. The plain copy has
    /// none.
    pub fn best(&self, way: Way, gpu: &str, disk: &str, peers: usize) -> Option<&Rate> {
        let peers = way.helped_by(peers);
        let fits = |r: &&Rate| {
            r.way == way && r.peers == peers && r.gpu == gpu && r.disk.as_deref().is_none_or(|d| d == disk)
        };
        self.rates.iter().filter(fits).max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(way: Way, lanes: usize, bytes_per_second: f64) -> Rate {
        Rate {
            way,
            gpu: "0000:3b:00.0".to_owned(),
            disk: (way == Way::Disk).then(|| "259:0".to_owned()),
            peers: 0,
            lanes,
            part_bytes: 4 << 20,
            bytes: 1 << 30,
            bytes_per_second,
            cpu_seconds_per_gb: 0.1,
            measured_at: 1,
        }
    }

    #[test]
    fn what_was_measured_is_read_back_and_the_fastest_setting_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("glake/routes.json");
        assert_eq!(Rates::load(&path), (Rates::default(), None));
        let mut rates = Rates::default();
        rates.add(vec![
            rate(Way::PageCache, 4, 25e9),
            rate(Way::PageCache, 12, 51e9),
            rate(Way::Disk, 4, 2e9),
        ]);
        rates.add(vec![rate(Way::PageCache, 12, 50e9)]);
        rates.save(&path).unwrap();
        let (read, note) = Rates::load(&path);
        assert_eq!((read.rates.len(), note), (3, None));
        let best = |way, gpu, disk| read.best(way, gpu, disk, 0).map(|r| r.bytes_per_second);
        assert_eq!(best(Way::PageCache, "0000:3b:00.0", "8:0"), Some(50e9));
        assert_eq!(best(Way::Disk, "0000:3b:00.0", "259:0"), Some(2e9));
        assert_eq!(best(Way::Disk, "0000:3b:00.0", "8:0"), None);
        assert_eq!(best(Way::PageCache, "0000:aa:00.0", "8:0"), None);
        assert_eq!(read.best(Way::PageCache, "0000:3b:00.0", "8:0", 1), None, "measured without peers");
    }

    #[test]
    fn a_damaged_file_or_one_of_another_version_is_not_used_and_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("routes.json");
        for (text, words) in [("{\"version\":1", "damaged"), ("{\"version\":2,\"rates\":[]}", "version 2")] {
            std::fs::write(&path, text).unwrap();
            let (rates, note) = Rates::load(&path);
            assert!(rates.rates.is_empty());
            let note = note.unwrap();
            assert!(note.contains(words) && note.contains("bench copy"), "{note}");
        }
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        assert!(Rates::load(&dir.path().join("folder")).1.is_some());
    }

    #[test]
    fn impossible_figures_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("routes.json");
        let mut rates = Rates::default();
        rates.add(vec![
            rate(Way::PageCache, 0, 1e9),
            rate(Way::PageCache, 3, -1.0),
            rate(Way::PageCache, 2, 1e9),
        ]);
        rates.save(&path).unwrap();
        assert_eq!(Rates::load(&path).0.rates.len(), 1);
    }
}
