//! cgroup2 ids become paths: an id is the inode number of the cgroup's folder.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::DirEntryExt,
    path::{Path, PathBuf},
};

/// How many samples an unknown id waits before the tree is walked again.
const PATIENCE: u32 = 10;
/// More folders than this are not walked: ids then stay without a path.
const MOST: usize = 50_000;

/// Paths by id.
#[derive(Debug)]
pub(crate) struct Cgroups {
    mount: Option<PathBuf>,
    paths: HashMap<u64, String>,
    wait: u32,
}

impl Cgroups {
    pub(crate) fn new(root: &Path) -> Cgroups {
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        let mount = parse_mount(&mounts).map(|m| root.join(m.trim_start_matches('/')));
        let mut cgroups = Cgroups { mount, paths: HashMap::new(), wait: 0 };
        cgroups.walk();
        cgroups
    }

    /// Once a sample.
    pub(crate) fn tick(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }

    /// The path of a cgroup below the mount point: `/system.slice/x.service`. `None`: unknown.
    pub(crate) fn path(&mut self, id: u64) -> Option<String> {
        if id == 0 {
            return None;
        }
        if !self.paths.contains_key(&id) && self.wait == 0 {
            self.wait = PATIENCE;
            self.walk();
        }
        self.paths.get(&id).cloned()
    }

    fn walk(&mut self) {
        let Some(mount) = self.mount.clone() else { return };
        let mut found = HashMap::new();
        if let Ok(meta) = fs::metadata(&mount) {
            found.insert(std::os::unix::fs::MetadataExt::ino(&meta), "/".to_owned());
        }
        let mut todo = vec![(mount, String::new())];
        while let Some((dir, path)) = todo.pop() {
            if found.len() > MOST {
                break;
            }
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    let path = format!("{path}/{}", entry.file_name().to_string_lossy());
                    found.insert(entry.ino(), path.clone());
                    todo.push((entry.path(), path));
                }
            }
        }
        // A cgroup that is gone keeps its last path while there is room: its workload may still be in the counters.
        if self.paths.len() < MOST {
            self.paths.extend(found);
        } else {
            self.paths = found;
        }
    }
}

/// The mount point of cgroup2 in a mountinfo file (proc_pid_mountinfo(5)).
fn parse_mount(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (right.split(' ').next()? == "cgroup2").then(|| left.split(' ').nth(4))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn an_id_is_the_inode_of_a_folder_below_the_mount() {
        let root = tempfile::tempdir().unwrap();
        let unit = root.path().join("cg/system.slice/a.service");
        fs::create_dir_all(&unit).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let line = "30 24 0:26 / /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        fs::write(root.path().join("proc/self/mountinfo"), format!("broken\n{line}")).unwrap();
        let mut cgroups = Cgroups::new(root.path());
        assert_eq!(
            cgroups.path(fs::metadata(&unit).unwrap().ino()).as_deref(),
            Some("/system.slice/a.service")
        );
        assert_eq!(cgroups.path(fs::metadata(root.path().join("cg")).unwrap().ino()).as_deref(), Some("/"));
        assert_eq!(cgroups.path(u64::MAX), None);
    }

    #[test]
    fn a_cgroup_made_later_is_found() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("cg")).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/mountinfo"), "1 1 0:1 / /cg rw - cgroup2 x rw\n").unwrap();
        let mut cgroups = Cgroups::new(root.path());
        let late = root.path().join("cg/late");
        fs::create_dir_all(&late).unwrap();
        assert_eq!(cgroups.path(fs::metadata(&late).unwrap().ino()).as_deref(), Some("/late"));
    }
}
