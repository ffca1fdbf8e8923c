//! Who watches, and what its programs cost, as the kernel counts it.

use anyhow::{Context, Result, ensure};
use glake::events::{
    ebpf::{Live, Settings},
    sample::ProbeState,
    source::Source,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// A watcher that works until it is dropped.
pub enum Observer {
    /// The live probes with a reading every second, as in the agent.
    Glake { stop: Arc<AtomicBool>, reader: Option<JoinHandle<()>> },
    /// Another process.
    Process(Child),
}

/// One program's counters.
#[derive(Debug, Clone)]
pub struct Program {
    pub name: String,
    pub runs: u64,
    pub run_time_ns: u64,
}

impl Observer {
    pub fn glake() -> Result<Observer> {
        let settings = Settings { max_cpu_percent: 0.0, ..Settings::default() };
        let mut live = Live::start(settings, Path::new("/"))?;
        let off: Vec<_> =
            live.probes().into_iter().filter(|p| p.required && p.state != ProbeState::On).collect();
        ensure!(off.is_empty(), "required probes are not on: {off:?}");
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let reader = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let _ = (live.sample(), live.events());
                std::thread::park_timeout(Duration::from_secs(1));
            }
        });
        Ok(Observer::Glake { stop, reader: Some(reader) })
    }

    pub fn biolatency(path: &Path) -> Result<Observer> {
        // One histogram a minute: it prints nothing while it is measured.
        let mut command = Command::new(path);
        command.args(["60", "1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn().with_context(|| format!("starting {}", path.display()))?;
        let mut observer = Observer::Process(child);
        let end = Instant::now() + Duration::from_secs(20);
        // It is on when its programs run for somebody's I/O or have been there for a while.
        while observer.programs()?.len() < 2 {
            if let Observer::Process(child) = &mut observer {
                ensure!(child.try_wait()?.is_none(), "{} ended at once", path.display());
            }
            ensure!(Instant::now() < end, "{} loaded no programs within 20 s", path.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        // From loading to attaching.
        std::thread::sleep(Duration::from_millis(300));
        Ok(observer)
    }

    /// The counters of every program that the watcher holds, by id.
    pub fn programs(&self) -> Result<BTreeMap<u32, Program>> {
        let pid = match self {
            Observer::Glake { .. } => std::process::id(),
            Observer::Process(child) => child.id(),
        };
        programs_of(pid)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        match self {
            Observer::Glake { stop, reader } => {
                stop.store(true, Ordering::Relaxed);
                if let Some(reader) = reader.take() {
                    reader.thread().unpark();
                    let _ = reader.join();
                }
            }
            Observer::Process(child) => {
                let _ = (child.kill(), child.wait());
            }
        }
    }
}

/// The programs that a process holds open: the kernel tells their ids in /proc/PID/fdinfo.
fn programs_of(pid: u32) -> Result<BTreeMap<u32, Program>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let entries = std::fs::read_dir(&folder).with_context(|| folder.clone())?;
    let ids: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        // Links name their program too; only the program itself has counters.
        .filter(|text| text.contains("run_cnt:"))
        .filter_map(|text| text.lines().find_map(|l| l.strip_prefix("prog_id:")?.trim().parse().ok()))
        .collect();
    let mut out = BTreeMap::new();
    for program in aya::programs::loaded_programs().flatten().filter(|p| ids.contains(&p.id())) {
        let name = program.name_as_str().unwrap_or("unnamed").to_owned();
        let run_time_ns = u64::try_from(program.run_time().as_nanos()).unwrap_or(u64::MAX);
        out.insert(program.id(), Program { name, runs: program.run_count(), run_time_ns });
    }
    Ok(out)
}

/// What the programs did in between.
pub fn between(before: &BTreeMap<u32, Program>, after: &BTreeMap<u32, Program>) -> Vec<Program> {
    let grown = |(id, a): (&u32, &Program)| {
        let (runs, ns) = before.get(id).map_or((0, 0), |b| (b.runs, b.run_time_ns));
        Program {
            name: a.name.clone(),
            runs: a.runs.saturating_sub(runs),
            run_time_ns: a.run_time_ns.saturating_sub(ns),
        }
    };
    after.iter().map(grown).collect()
}

/// biolatency where it was named, or where `cargo xtask bench` or PATH has it.
pub fn find_biolatency(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(named.to_owned());
    }
    let tools = std::env::var_os("GLAKE_LIBBPF_TOOLS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = tools.into_iter().chain(std::env::split_paths(&path));
    folders.map(|f| f.join("biolatency")).find(|p| p.is_file())
}
