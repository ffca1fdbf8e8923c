//! What a process with GLake's allocator tells the host about itself.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use glake::events::heaps::{FOLDER, HeapProcess, Lookout, PREFIX, SILENT};
use glake_tests::agent::{Setup, can_watch, wait};

use super::{python, says};

/// A process that holds 100 MiB on the host GPU, until it is told to end.
struct Holder {
    child: Child,
}

impl Holder {
    fn start(python: &Path) -> Holder {
        let script = "
import sys
from glake import _core
block = _core.allocate(100 << 20)
print('holds', flush=True)
sys.stdin.read()
";
        let mut child = Command::new(python);
        child.args(["-c", script]).env("GLAKE_DEVICE", "host").env_remove("GLAKE_DISABLE");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "holds\n");
        Holder { child }
    }

    fn file(&self) -> Option<PathBuf> {
        let begin = format!("{PREFIX}{}.", self.child.id());
        let ours = |e: &fs::DirEntry| {
            let name = e.file_name().to_string_lossy().into_owned();
            name.starts_with(&begin) && !name.ends_with(".part")
        };
        fs::read_dir(Path::new("/").join(FOLDER)).ok()?.flatten().find(ours).map(|e| e.path())
    }

    fn seen(&self) -> Option<HeapProcess> {
        let found = Lookout::default().look(Path::new("/"), 0);
        found.processes.into_iter().find(|p| p.pid == self.child.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `None`: what a process tells cannot be kept here.
fn holder() -> Option<Holder> {
    let folder = Path::new("/").join(FOLDER);
    if rustix::fs::access(&folder, rustix::fs::Access::WRITE_OK).is_err() {
        println!("skipped: {} cannot be written", folder.display());
        return None;
    }
    Some(Holder::start(python()?))
}

#[test]
fn a_process_tells_what_it_holds_and_takes_it_back_at_its_end() {
    let Some(mut holder) = holder() else { return };
    let said = wait("the process to be found", || holder.seen());
    assert!(!said.silent && said.said.gpus[0].reserved_bytes >= 100 << 20, "{said:?}");
    assert_eq!(said.said.gpus[0].allocated_bytes, 100 << 20);
    assert_eq!(said.said.gpus[0].pci, None, "host memory sits in no PCI slot");
    let file = holder.file().unwrap();
    holder.child.stdin.take().unwrap().flush().unwrap();
    assert!(holder.child.wait().unwrap().success());
    assert!(!file.exists(), "a process that ends leaves nothing");
}

#[test]
fn what_a_killed_process_left_is_believed_by_nobody_and_removed_by_the_next() {
    let Some(mut holder) = holder() else { return };
    let file = wait("its file", || holder.file());
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    assert!(file.exists() && holder.seen().is_none());
    // As if a minute had passed: a younger file may be another pid namespace's.
    let old = SystemTime::now() - 2 * SILENT;
    fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    let script = format!(
        "import os, time\nfrom glake import _core\nblock = _core.allocate(1 << 20)\nwhile os.path.exists({:?}): time.sleep(0.01)",
        file.display().to_string()
    );
    says(&script, &[]);
    assert!(!file.exists());
}

#[test]
fn the_agent_tells_who_holds_what() {
    if !can_watch() {
        return;
    }
    let Some(holder) = holder() else { return };
    wait("the process to be found", || holder.seen());
    let folder = tempfile::tempdir().unwrap();
    let ran =
        Setup::new(&["--once", "--json", "--interval", "200ms"]).command(folder.path()).output().unwrap();
    let state: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let pid = serde_json::Value::from(holder.child.id());
    let rows = state["allocators"].as_array().unwrap();
    let row = rows.iter().find(|r| r["pids"].as_array().unwrap().contains(&pid)).unwrap();
    assert!(row["reserved_bytes"].as_u64() >= Some(100 << 20), "{row}");
    assert_eq!(row["fallbacks"]["total"], 0, "{row}");
}
