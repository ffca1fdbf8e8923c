//! Finds the files, again and again, at a cost that does not grow with the processes of the host: who shares which mount
//! namespace is learnt anew every ten seconds, what a file's process is only once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::copies::{self, Copies};
use super::{FOLDER, HeapFile, HeapProcess, Heaps, MOST_BYTES, PREFIX, SILENT, parse, start_ticks};
use crate::error::{Error, Kind, Result};

/// Namespaces are looked for this often.
const WALK_NS: u64 = 10 * 1_000_000_000;
/// Files of one folder that are looked at: anybody may put some there.
const MOST_FILES: usize = 4096;

/// Remembers between two looks.
#[derive(Debug, Default)]
pub struct Lookout {
    walked_ns: Option<u64>,
    /// Roots of mount namespaces other than ours, each with its processes.
    namespaces: Vec<(PathBuf, Vec<u32>)>,
    hidden: u64,
    /// What is known of each file.
    files: BTreeMap<PathBuf, Known>,
    /// What each file last said of copies, and what came together since the first look. Programs that copy and end leave their
    /// file behind: whether they live does not matter here.
    told: BTreeMap<PathBuf, Vec<Copies>>,
    copied: Vec<Copies>,
}

#[derive(Debug, Clone)]
enum Known {
    /// Nobody's that lives, or not its process's own. Asked again after the next walk: its process may have come since the last.
    Dead,
    Of(Box<HeapProcess>),
}

impl Lookout {
    /// Looks through the mount namespaces that can be reached below `root` (`/` on a live host). `now_ns`: monotonic.
    pub fn look(&mut self, root: &Path, now_ns: u64) -> Heaps {
        let proc = root.join("proc");
        if self.walked_ns.is_none_or(|at| now_ns.saturating_sub(at) >= WALK_NS) {
            self.walked_ns = Some(now_ns);
            self.walk(&proc);
            self.files.retain(|_, known| matches!(known, Known::Of(_)));
        }
        let mut found = Heaps { hidden: self.hidden, ..Heaps::default() };
        let mut seen = BTreeSet::new();
        self.folder(&root.join(FOLDER), &proc, None, &mut found, &mut seen);
        for (root, pids) in self.namespaces.clone() {
            self.folder(&root.join(FOLDER), &proc, Some(&pids), &mut found, &mut seen);
        }
        self.forget(&proc, &seen);
        found.copies.clone_from(&self.copied);
        let living = self.files.values().filter_map(|known| match known {
            Known::Of(process) => Some((**process).clone()),
            Known::Dead => None,
        });
        found.processes.extend(living);
        found.processes.sort_by_key(|p| (p.pid, p.silent));
        found.processes.dedup_by_key(|p| p.pid);
        found
    }

    /// Mount namespaces other than ours: one root of each, and the processes in it.
    fn walk(&mut self, proc: &Path) {
        let own = fs::read_link(proc.join("self/ns/mnt")).ok();
        let mut by_namespace: BTreeMap<PathBuf, Vec<u32>> = BTreeMap::new();
        self.hidden = 0;
        for pid in all_pids(proc) {
            match fs::read_link(proc.join(pid.to_string()).join("ns/mnt")) {
                Ok(link) if Some(&link) != own.as_ref() => by_namespace.entry(link).or_default().push(pid),
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => self.hidden += 1,
                // It ended meanwhile.
                Err(_) => {}
            }
        }
        let root = |pids: &[u32]| Some(proc.join(pids.first()?.to_string()).join("root"));
        self.namespaces = by_namespace.into_values().filter_map(|pids| Some((root(&pids)?, pids))).collect();
    }

    fn folder(
        &mut self,
        folder: &Path,
        proc: &Path,
        pids: Option<&[u32]>,
        found: &mut Heaps,
        seen: &mut BTreeSet<PathBuf>,
    ) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let ours = entries.filter(|e| is_name(&e.file_name().to_string_lossy()));
        for path in ours.take(MOST_FILES).map(|e| e.path()) {
            let read = read(&path);
            if let Ok(file) = &read {
                self.count(&path, &file.said, proc);
            }
            match (self.files.get_mut(&path), read) {
                // The file went between the listing and the reading.
                (_, Err(e)) if e.kind() == Kind::Missing => continue,
                (Some(Known::Dead), _) => {}
                (Some(Known::Of(process)), Ok(file)) => renew(process, file),
                (None, Ok(file)) => {
                    let known = living(file, proc, pids).map_or(Known::Dead, |p| Known::Of(Box::new(p)));
                    self.files.insert(path.clone(), known);
                }
                (_, Err(_)) => found.broken += 1,
            }
            seen.insert(path);
        }
    }

    /// Lets go of processes that ended, and of what is known of files that went. A process whose file cannot be reached for a
    /// moment stays as it was last seen: else its counters would be counted twice.
    fn forget(&mut self, proc: &Path, seen: &BTreeSet<PathBuf>) {
        let lives =
            |p: &HeapProcess| start_ticks(proc, &p.pid.to_string()).is_some_and(|t| t == p.said.start_ticks);
        for (path, known) in &mut self.files {
            if let Known::Of(process) = known {
                if !lives(process) {
                    *known = Known::Dead;
                } else if !seen.contains(path) {
                    process.silent = true;
                }
            }
        }
        self.files.retain(|path, known| matches!(known, Known::Of(_)) || seen.contains(path));
        self.told.retain(|path, _| seen.contains(path));
    }

    /// Counts what was copied since the file's last words; of a process that began before this one, since its first.
    fn count(&mut self, path: &Path, said: &HeapFile, proc: &Path) {
        if said.copies.is_empty() {
            return;
        }
        let later = || start_ticks(proc, "self").is_some_and(|own| said.start_ticks >= own);
        let nothing = Vec::new();
        let before = match self.told.get(path) {
            Some(before) => before,
            None if later() => &nothing,
            None => &said.copies,
        };
        copies::add_growth(&mut self.copied, before, &said.copies);
        self.told.insert(path.to_owned(), said.copies.clone());
    }
}

/// `glake-heap.PID.START`: a file that is only being written has one part more.
fn is_name(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(pid, start)| number(pid) && number(start))
}

fn all_pids(proc: &Path) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

struct Content {
    said: HeapFile,
    uid: u32,
    silent: bool,
}

/// The content and the user it belongs to. Links and everything that is no plain file are refused.
fn read(path: &Path) -> Result<Content> {
    let doing = || format!("reading {}", path.display());
    let open = fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = open.map_err(|e| Error::os(doing(), e))?;
    let meta = file.metadata().map_err(|e| Error::os(doing(), e))?;
    if !meta.is_file() || meta.len() > MOST_BYTES {
        return Err(Error::new(Kind::BadInput, format!("no plain file of at most {MOST_BYTES} bytes")));
    }
    let age = meta.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|e| Error::os(doing(), e))?;
    Ok(Content { said: parse(&bytes)?, uid: meta.uid(), silent: age.is_some_and(|age| age > SILENT) })
}

/// What a known process says now. A file that turned into another process's is not believed.
fn renew(process: &mut HeapProcess, file: Content) {
    let same = |said: &HeapFile| (said.pid, said.start_ticks);
    process.silent = file.silent || same(&process.said) != same(&file.said);
    if !process.silent {
        process.said = file.said;
    }
}

/// The process that wrote it, if it lives. `pids`: those that may be it; `None`: all. They are gone through only for a file that is
/// still written: what dead processes left behind must cost nothing.
fn living(file: Content, proc: &Path, pids: Option<&[u32]>) -> Option<HeapProcess> {
    let said = file.said;
    let started = |pid: u32| start_ticks(proc, &pid.to_string()) == Some(said.start_ticks);
    let status = |pid: u32| fs::read_to_string(proc.join(pid.to_string()).join("status")).unwrap_or_default();
    let is_it = |pid: u32| {
        let status = status(pid);
        let inner = field(&status, "NSpid:", usize::MAX).unwrap_or(pid);
        inner == said.pid && field(&status, "Uid:", 0).is_some_and(|uid| uid == file.uid)
    };
    let all = || pids.map_or_else(|| all_pids(proc), <[u32]>::to_vec);
    let first = Some(said.pid).filter(|pid| pids.is_none_or(|pids| pids.contains(pid)));
    let found = first.filter(|pid| started(*pid) && is_it(*pid));
    let candidates = if file.silent { Vec::new() } else { all() };
    let pid = found.or_else(|| candidates.into_iter().find(|pid| started(*pid) && is_it(*pid)))?;
    let at = proc.join(pid.to_string());
    let cgroup = fs::read_to_string(at.join("cgroup")).unwrap_or_default();
    Some(HeapProcess {
        pid,
        comm: fs::read_to_string(at.join("comm")).unwrap_or_default().trim_end().to_owned(),
        cgroup_path: cgroup.lines().find_map(|l| l.strip_prefix("0::")).map(str::to_owned),
        silent: file.silent,
        said,
    })
}

/// Number `nth` of a line of `status`; past the end: the last one.
fn field(status: &str, name: &str, nth: usize) -> Option<u32> {
    let words: Vec<&str> = status.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().collect();
    words.get(nth).or(words.last())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::{HeapGpu, SCHEMA};
    use super::*;
    use crate::events::sample::Histogram;

    /// A process in a recorded /proc; `inner` is its number in its own namespace.
    fn process(root: &Path, pid: u32, inner: u32, start: u64) {
        let at = root.join("proc").join(pid.to_string());
        fs::create_dir_all(&at).unwrap();
        let uid = fs::metadata(root).unwrap().uid();
        let fields = "0 ".repeat(18);
        fs::write(at.join("stat"), format!("{pid} (a) b) S {fields}{start} 1 1")).unwrap();
        let status = format!("Name:\tx\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{pid}\t{inner}\n");
        fs::write(at.join("status"), status).unwrap();
        fs::write(at.join("comm"), "python3\n").unwrap();
        fs::write(at.join("cgroup"), "0::/slurm/job_7\n").unwrap();
    }

    fn says(folder: &Path, pid: u32, start: u64, reserved: u64) {
        fs::create_dir_all(folder).unwrap();
        let gpus = vec![HeapGpu { reserved_bytes: reserved, ..HeapGpu::default() }];
        let file = HeapFile { schema: SCHEMA, pid, start_ticks: start, gpus, ..HeapFile::default() };
        let path = folder.join(format!("{PREFIX}{pid}.{start}"));
        fs::write(path, serde_json::to_vec(&file).unwrap()).unwrap();
    }

    fn pids(found: &Heaps) -> Vec<u32> {
        found.processes.iter().map(|p| p.pid).collect()
    }

    #[test]
    fn a_living_process_is_found_and_a_dead_or_reused_number_is_not() {
        let root = tempfile::tempdir().unwrap();
        process(root.path(), 41, 41, 1000);
        let folder = root.path().join(FOLDER);
        says(&folder, 41, 1000, 1);
        says(&folder, 41, 999, 1);
        says(&folder, 42, 1000, 1);
        let mut lookout = Lookout::default();
        let found = lookout.look(root.path(), 1);
        assert_eq!(pids(&found), [41], "{found:?}");
        assert_eq!(found.processes[0].comm, "python3");
        assert_eq!(found.processes[0].cgroup_path.as_deref(), Some("/slurm/job_7"));
        says(&folder, 41, 1000, 2);
        let found = lookout.look(root.path(), 2);
        assert_eq!(found.processes[0].said.gpus[0].reserved_bytes, 2, "read anew each time");
        process(root.path(), 41, 41, 2000);
        assert!(pids(&lookout.look(root.path(), 3)).is_empty(), "the number has another process now");
        assert_eq!(found.broken, 0);
    }

    #[test]
    fn a_process_in_a_container_is_found_by_its_inner_number_also_when_it_comes_later() {
        let root = tempfile::tempdir().unwrap();
        // Another container's process 1, which started earlier.
        process(root.path(), 77, 1, 4000);
        let mut lookout = Lookout::default();
        assert!(lookout.look(root.path(), 1).processes.is_empty());
        process(root.path(), 88213, 1, 5000);
        let at = root.path().join("proc/88213");
        fs::create_dir_all(at.join("ns")).unwrap();
        std::os::unix::fs::symlink("mnt:[4026532000]", at.join("ns/mnt")).unwrap();
        says(&at.join("root").join(FOLDER), 1, 5000, 1);
        let found = lookout.look(root.path(), 1 + WALK_NS);
        assert_eq!(pids(&found), [88213]);
        assert_eq!(found.processes[0].said.pid, 1);
        // One more in the same container, after the walk.
        process(root.path(), 88300, 7, 6000);
        let other = root.path().join("proc/88300");
        fs::create_dir_all(other.join("ns")).unwrap();
        std::os::unix::fs::symlink("mnt:[4026532000]", other.join("ns/mnt")).unwrap();
        says(&at.join("root").join(FOLDER), 7, 6000, 1);
        lookout.look(root.path(), 2 + WALK_NS);
        assert_eq!(pids(&lookout.look(root.path(), 1 + 2 * WALK_NS)), [88213, 88300]);
    }

    #[test]
    fn a_file_that_cannot_be_reached_for_a_moment_leaves_its_process_known() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        process(root.path(), 5, 5, 1);
        says(&folder, 5, 1, 9);
        let mut lookout = Lookout::default();
        lookout.look(root.path(), 1);
        fs::remove_file(folder.join("glake-heap.5.1")).unwrap();
        let found = lookout.look(root.path(), 2);
        assert!(found.processes[0].silent && found.processes[0].said.gpus[0].reserved_bytes == 9);
        says(&folder, 5, 1, 10);
        let found = lookout.look(root.path(), 3);
        assert!(!found.processes[0].silent && found.processes[0].said.gpus[0].reserved_bytes == 10);
    }

    #[test]
    fn copies_count_from_when_it_is_looked_and_also_those_of_programs_that_have_ended() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        process(root.path(), 3, 3, 500);
        fs::rename(root.path().join("proc/3"), root.path().join("proc/self")).unwrap();
        process(root.path(), 5, 5, 400);
        let says = |pid: u32, start_ticks: u64, bytes: u64| {
            fs::create_dir_all(&folder).unwrap();
            let duration = Histogram { slots: vec![0, bytes / 10], sum_ns: bytes };
            let copies = vec![Copies { bytes, duration, ..Copies::default() }];
            let file = HeapFile { schema: SCHEMA, pid, start_ticks, copies, ..HeapFile::default() };
            let path = folder.join(format!("{PREFIX}{pid}.{start_ticks}"));
            fs::write(path, serde_json::to_vec(&file).unwrap()).unwrap();
        };
        let bytes =
            |found: &Heaps| found.copies.iter().map(|c| (c.bytes, c.duration.count())).collect::<Vec<_>>();
        let mut lookout = Lookout::default();
        says(5, 400, 100);
        says(6, 300, 1000);
        assert_eq!(bytes(&lookout.look(root.path(), 1)), [(0, 0)], "older than this one: from now on");
        says(5, 400, 130);
        says(7, 600, 50);
        assert_eq!(bytes(&lookout.look(root.path(), 2)), [(80, 8)], "7 ended before it was seen once");
        assert_eq!(bytes(&lookout.look(root.path(), 3)), [(80, 8)], "once");
        fs::remove_file(folder.join("glake-heap.7.600")).unwrap();
        says(5, 400, 10);
        assert_eq!(bytes(&lookout.look(root.path(), 4)), [(80, 8)], "never less, whatever is said");
    }

    #[test]
    fn a_file_that_is_not_written_any_more_is_silent() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        process(root.path(), 5, 5, 1);
        says(&folder, 5, 1, 9);
        let file = fs::File::options().write(true).open(folder.join("glake-heap.5.1")).unwrap();
        file.set_modified(SystemTime::now() - 2 * SILENT).unwrap();
        assert!(Lookout::default().look(root.path(), 1).processes[0].silent);
    }

    #[test]
    fn what_is_no_file_of_ours_is_counted_and_costs_only_itself() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        process(root.path(), 5, 5, 1);
        says(&folder, 5, 1, 1);
        fs::write(folder.join("glake-heap.9.9"), "{\"pid\": -1}").unwrap();
        fs::write(folder.join("glake-heap.8.8"), vec![b' '; 100_000]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.join("glake-heap.7.7")).unwrap();
        fs::write(folder.join("glake-heap.5.1.part"), "{").unwrap();
        fs::write(folder.join("other"), "x").unwrap();
        let found = Lookout::default().look(root.path(), 1);
        assert_eq!((found.processes.len(), found.broken), (1, 3));
    }

    #[test]
    fn another_users_file_about_a_process_is_not_believed() {
        let root = tempfile::tempdir().unwrap();
        process(root.path(), 5, 5, 1);
        let status = root.path().join("proc/5/status");
        let text = fs::read_to_string(&status).unwrap();
        let uid = fs::metadata(root.path()).unwrap().uid();
        fs::write(&status, text.replace(&format!("Uid:\t{uid}"), &format!("Uid:\t{}", uid + 1))).unwrap();
        says(&root.path().join(FOLDER), 5, 1, 1);
        assert!(Lookout::default().look(root.path(), 1).processes.is_empty());
    }
}
