//! Names of block devices. Hidden NVMe multipath paths are folded into their heads.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

/// Names by device number, from /proc/diskstats, which lists hidden path devices too.
#[derive(Debug)]
pub(crate) struct Names {
    root: PathBuf,
    by_number: HashMap<(u32, u32), String>,
}

/// A path of NVMe multipath: `nvme0c1n2` is controller nvme1's path to nvme0n2.
fn split_path(name: &str) -> Option<(String, String)> {
    let rest = name.strip_prefix("nvme")?;
    let (subsystem, rest) = rest.split_once('c')?;
    let (controller, namespace) = rest.split_once('n')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    (digits(subsystem) && digits(controller) && digits(namespace))
        .then(|| (format!("nvme{subsystem}n{namespace}"), format!("nvme{controller}")))
}

/// `nvme0`, and nothing longer.
fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn parse_diskstats(text: &str) -> HashMap<(u32, u32), String> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.split_whitespace();
            let major = parts.next()?.parse().ok()?;
            let minor = parts.next()?.parse().ok()?;
            Some(((major, minor), parts.next()?.to_owned()))
        })
        .collect()
}

impl Names {
    pub(crate) fn new(root: &Path) -> Names {
        let mut names = Names { root: root.to_owned(), by_number: HashMap::new() };
        names.refresh();
        names
    }

    /// Reads the names again; devices that are gone keep theirs until another takes the number.
    pub(crate) fn refresh(&mut self) {
        if let Ok(text) = fs::read_to_string(self.root.join("proc/diskstats")) {
            self.by_number.extend(parse_diskstats(&text));
        }
    }

    /// The name of a device as users know it, and the controller if the number belongs to one path of it.
    pub(crate) fn head(&mut self, major: u32, minor: u32) -> (String, Option<String>) {
        if !self.by_number.contains_key(&(major, minor)) {
            self.refresh();
        }
        match self.by_number.get(&(major, minor)) {
            Some(name) => match split_path(name) {
                Some((head, controller)) => (head, Some(controller)),
                None => (name.clone(), None),
            },
            None => (format!("{major}:{minor}"), None),
        }
    }

    /// The NVMe controllers behind a device.
    pub(crate) fn controllers(&self, device: &str) -> Vec<String> {
        if !device.starts_with("nvme") {
            return Vec::new();
        }
        let mut found: BTreeSet<String> = self
            .by_number
            .values()
            .filter_map(|n| split_path(n))
            .filter(|(head, _)| head == device)
            .map(|(_, controller)| controller)
            .collect();
        if let Ok(parent) = fs::canonicalize(self.root.join("sys/block").join(device).join("device"))
            && let Some(name) = parent.file_name().and_then(|n| n.to_str())
            && is_controller(name)
        {
            found.insert(name.to_owned());
        }
        found.into_iter().collect()
    }

    /// Requests in flight now, from sysfs. `None`: the device is gone or does not say.
    pub(crate) fn in_flight(&self, device: &str) -> Option<u64> {
        let text = fs::read_to_string(self.root.join("sys/block").join(device).join("inflight")).ok()?;
        text.split_whitespace().map(|n| n.parse::<u64>().ok()).sum()
    }
}

/// What the sizes and settings of the probes depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disks {
    /// Whole disks.
    pub(crate) count: u32,
    /// Every queue stamps its requests with their start (queue/iostats) and issue (a statistics user such as wbt).
    pub(crate) stamped: bool,
}

impl Disks {
    pub(crate) fn read(root: &Path) -> Disks {
        let dir = root.join("sys/block");
        let names: Vec<String> = fs::read_dir(&dir)
            .map(|d| d.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect())
            .unwrap_or_default();
        let read = |name: &str, file: &str| -> Option<u64> {
            fs::read_to_string(dir.join(name).join("queue").join(file)).ok()?.trim().parse().ok()
        };
        // A driver without a request queue (bio-based: zram, dm, md, multipath heads) has no queue/iostats or nr_requests.
        let stamped = names
            .iter()
            .filter(|n| read(n, "nr_requests").is_some())
            .all(|n| read(n, "iostats") == Some(1) && read(n, "wbt_lat_usec").is_some_and(|us| us > 0));
        Disks { count: u32::try_from(names.len()).unwrap_or(u32::MAX), stamped }
    }
}

/// PCI address, queues, queue depth and namespaces of the NVMe controllers.
pub(crate) fn nvme_controllers(root: &Path) -> BTreeMap<u32, Controller> {
    let Ok(dir) = fs::read_dir(root.join("sys/class/nvme")) else { return BTreeMap::new() };
    dir.filter_map(|e| {
        let name = e.ok()?.file_name().into_string().ok()?;
        let number = name.strip_prefix("nvme")?.parse().ok()?;
        Some((number, Controller::read(root, &name)))
    })
    .collect()
}

/// One NVMe controller as sysfs shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Controller {
    pub(crate) pci: Option<String>,
    pub(crate) queues: Option<u32>,
    /// Entries of an I/O queue.
    pub(crate) depth: Option<u32>,
    /// log2 of the block size by namespace id.
    pub(crate) shifts: BTreeMap<u32, u32>,
}

impl Controller {
    fn read(root: &Path, name: &str) -> Controller {
        let dir = root.join("sys/class/nvme").join(name);
        let text = |file: &Path| fs::read_to_string(file).ok().map(|t| t.trim().to_owned());
        let number = |file: &str| text(&dir.join(file))?.parse::<u32>().ok();
        let pci = fs::canonicalize(dir.join("device"))
            .ok()
            .and_then(|p| Some(p.file_name()?.to_str()?.to_owned()))
            .filter(|n| n.matches(':').count() == 2);
        let mut shifts = BTreeMap::new();
        // Namespaces are below the controller as nvme0n1 or, with multipath, as nvme0c0n1.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let of = |file: &str| text(&path.join(file))?.parse::<u32>().ok();
            if let (Some(nsid), Some(size)) = (of("nsid"), of("queue/logical_block_size"))
                && size.is_power_of_two()
            {
                shifts.insert(nsid, size.trailing_zeros());
            }
        }
        // nvme_sysfs: `sqsize` is the 0's based size (drivers/nvme/host/sysfs.c).
        Controller { pci, queues: number("queue_count"), depth: number("sqsize").map(|n| n + 1), shifts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_hidden_path_is_folded_into_its_head() {
        let root = host(&[("proc/diskstats", " 259 1 nvme0c1n2 0 0\n 259 0 nvme0n2 0 0\n 254 0 vda 1 2\n")]);
        let mut names = Names::new(root.path());
        assert_eq!(names.head(259, 1), ("nvme0n2".to_owned(), Some("nvme1".to_owned())));
        assert_eq!(names.head(259, 0), ("nvme0n2".to_owned(), None));
        assert_eq!(names.controllers("nvme0n2"), ["nvme1"]);
        assert_eq!(names.head(254, 0).0, "vda");
    }

    #[test]
    fn an_unknown_device_keeps_its_number() {
        let root = host(&[("proc/diskstats", "garbage\n 1\n x y z\n")]);
        assert_eq!(Names::new(root.path()).head(8, 16).0, "8:16");
    }

    #[test]
    fn names_that_only_look_like_paths_are_left_alone() {
        for name in ["nvme0n1", "nvmec1n1", "nvme0c1", "nvmexc1n1", "sda", "nvme0c1nx"] {
            assert_eq!(split_path(name), None, "{name}");
        }
    }

    #[test]
    fn one_queue_that_does_not_stamp_its_requests_is_enough_to_do_it_ourselves() {
        let all = [
            ("sys/block/a/queue/iostats", "1\n"),
            ("sys/block/a/queue/nr_requests", "64\n"),
            ("sys/block/a/queue/wbt_lat_usec", "2000\n"),
            ("sys/block/zram0/queue/iostats", "0\n"),
        ];
        assert_eq!(Disks::read(host(&all).path()), Disks { count: 2, stamped: true });
        let mut none = all;
        none[2].1 = "0\n";
        assert!(!Disks::read(host(&none).path()).stamped);
        none = all;
        none[0].1 = "0\n";
        assert!(!Disks::read(host(&none).path()).stamped);
    }
}
