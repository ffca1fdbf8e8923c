//! `glake who gpu:N`: who has the GPU's device node open, in any namespace, and what is stuck in the driver.

use super::exit;
use super::out;
use crate::agent::config::{Layered, Request};
use crate::error::{Error, Kind, Result};
use crate::events::heaps::{HeapGpu, Heaps, Lookout};
use crate::events::nvml::{self, Held};
use crate::host::gpus;
use crate::host::holders::{self, Holder, Holders, Node, Stuck};
use crate::host::inventory::{Gpu, Inventory};
use crate::host::workload::Workload;
use crate::units::bytes;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

/// Who holds a GPU: processes with its device node open, and tasks stuck in the driver.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo glake who gpu:2\n  \
    sudo glake who 0000:3b:00.0 --json\n  \
    sudo glake who                      every GPU\n  \
    sudo glake who gpu:2 --nvml         and how much memory no process has\n\n\
    Opens no device node without --nvml. CUDA opens every GPU it may see, so holding a node is not the same as using the GPU.\n\
    Exit codes: 0 done, 1 failed, 3 done, but some processes could not be looked into.")]
pub(super) struct Args {
    /// The GPU: gpu:2, 2, a PCI address, or a UUID or its beginning. Without it: every GPU.
    gpu: Option<String>,
    /// Ask NVML how much memory is used, by whom, and how much by no process. This opens device nodes of the driver.
    #[arg(long)]
    nvml: bool,
    /// As JSON: one object.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// When there is no such GPU.
pub(super) fn run(args: Args) -> Result<u8> {
    let root = Path::new("/");
    let host = Inventory::read(root);
    let chosen: Vec<(usize, &Gpu)> = match &args.gpu {
        Some(text) => vec![gpus::find(&host.gpus, text)?],
        None if host.gpus.is_empty() => {
            return Err(Error::new(Kind::Missing, "this host shows no NVIDIA GPU")
                .remedy("the driver lists GPUs under /proc/driver/nvidia/gpus"));
        }
        None => host.gpus.iter().enumerate().collect(),
    };
    let found = holders::look(root);
    let memory = args.nvml.then(memory);
    let seen = Seen {
        found: &found,
        heaps: &Lookout::default().look(root, 0),
        host: &host,
        memory: memory.as_ref().map(|m| m.as_deref()),
    };
    let text = if args.json { format!("{}\n", to_json(&chosen, &seen)) } else { to_text(&chosen, &seen) };
    let mut out = out::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(out::failed)?;
    Ok(if found.refused > 0 || !found.whole_host { exit::DEGRADED } else { exit::OK })
}

/// What NVML says, by the configuration of the agent: which library, how long to wait.
fn memory() -> Result<Vec<Held>> {
    let config = Layered::read(&Request::of_process(None, Vec::new()))?.config.nvml;
    nvml::held(&config.library, config.timeout)
}

/// What the answer is made of.
#[derive(Clone, Copy)]
struct Seen<'a> {
    found: &'a Holders,
    heaps: &'a Heaps,
    host: &'a Inventory,
    /// `None`: NVML was not asked.
    memory: Option<std::result::Result<&'a [Held], &'a Error>>,
}

impl<'a> Seen<'a> {
    /// What NVML says of this GPU's memory; `Err`: why it is not known.
    fn memory(&self, gpu: &Gpu) -> std::result::Result<&'a Held, String> {
        match self.memory {
            None => Err(NOT_ASKED.to_owned()),
            Some(Err(e)) => Err(format!("cannot tell: {}", e.chain())),
            Some(Ok(all)) => {
                let found = all.iter().find(|held| held.pci == gpu.pci);
                found.ok_or_else(|| "cannot tell: NVML does not answer for this GPU".to_owned())
            }
        }
    }

    /// What GLake's allocator in the process holds on this GPU, as it says.
    fn heap(&self, holder: &Holder, gpu: &Gpu) -> Option<&'a HeapGpu> {
        let mut all = self.heaps.processes.iter().filter(|p| !p.silent);
        let said = &all.find(|p| i32::try_from(p.pid) == Ok(holder.pid))?.said;
        said.gpus.iter().find(|heap| heap.pci.as_deref() == Some(gpu.pci.as_str()))
    }
}

/// Those with this GPU's node open.
fn holding<'a>(found: &'a Holders, gpu: &Gpu) -> Vec<&'a Holder> {
    let node = gpu.minor.map(Node::Gpu);
    found.holders.iter().filter(|h| node.as_ref().is_some_and(|n| h.nodes.contains_key(n))).collect()
}

fn workload(holder: &Holder, host: &Inventory) -> Option<String> {
    let title = Workload::of_cgroup(holder.cgroup.as_deref()?, &host.containers).title();
    (title != "other").then_some(title)
}

fn to_text(chosen: &[(usize, &Gpu)], seen: &Seen<'_>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(&mut out, chosen, seen);
    out
}

fn write_text(out: &mut String, chosen: &[(usize, &Gpu)], seen: &Seen<'_>) -> std::fmt::Result {
    let found = seen.found;
    for (index, gpu) in chosen {
        let model = gpu.model.as_deref().unwrap_or("model unknown");
        let uuid = gpu.uuid.as_deref().unwrap_or("UUID unknown (the GPU was not used yet)");
        writeln!(out, "gpu {index}  {model}  {}  {uuid}", gpu.pci)?;
        let holding = holding(found, gpu);
        match (gpu.minor, holding.is_empty()) {
            (None, _) => writeln!(out, "HELD BY     cannot tell: the driver does not say which node it has")?,
            (Some(minor), true) => {
                writeln!(out, "HELD BY     no process that could be looked into has nvidia{minor} open")?
            }
            (Some(minor), false) => {
                writeln!(out, "HELD BY     processes with nvidia{minor} open (holding is not yet using)")?;
            }
        }
        for h in &holding {
            writeln!(out, "  {}", holder_line(h, gpu, seen))?;
        }
        let mine: Vec<&Stuck> = found.stuck.iter().filter(|s| concerns(s, &holding, found)).collect();
        stuck_lines(out, &mine)?;
        writeln!(out, "MEMORY      {}", memory_line(seen.memory(gpu)))?;
    }
    if found.refused > 0 {
        writeln!(
            out,
            "NOT ALL     {} of {} processes could not be looked into -> run as root or with CAP_SYS_PTRACE",
            found.refused, found.looked
        )?;
    }
    if !found.whole_host {
        writeln!(out, "NOT ALL     only this pid namespace is visible -> run on the host, or with hostPID")?;
    }
    Ok(())
}

/// Where NVML was not asked.
const NOT_ASKED: &str = "with no process: cannot tell without --nvml, which opens device nodes. If memory is used and nobody\n            \
                         above holds it, a process in another pid namespace or a dying one has it";

fn memory_line(held: std::result::Result<&Held, String>) -> String {
    let held = match held {
        Ok(held) => held,
        Err(why) => return why,
    };
    let each = |(pid, n): &(u32, Option<u64>)| {
        format!("pid {pid} {}", n.map_or_else(|| "(not told)".to_owned(), bytes))
    };
    let processes: Vec<String> = held.processes.iter().map(each).collect();
    let processes = if processes.is_empty() { "no process".to_owned() } else { processes.join(", ") };
    let rest = match held.without_process() {
        None => "with no process: cannot tell".to_owned(),
        Some(n) if n > MUCH => {
            format!("{} with NO PROCESS: one in another pid namespace or a dying one has it", bytes(n))
        }
        Some(n) => format!("{} with no process", bytes(n)),
    };
    format!("{} used of {}: {processes}; {rest}    from: NVML", bytes(held.used), bytes(held.total))
}

/// A GPU that nobody uses has up to some hundred MiB in use by the driver's own work.
const MUCH: u64 = 1 << 30;

/// A stuck task of a holder of this GPU, or a thread of the driver itself (it serves all).
fn concerns(stuck: &Stuck, holding: &[&Holder], found: &Holders) -> bool {
    let holds_any = found.holders.iter().any(|h| h.pid == stuck.pid);
    !holds_any || holding.iter().any(|h| h.pid == stuck.pid)
}

fn holder_line(h: &Holder, gpu: &Gpu, seen: &Seen<'_>) -> String {
    let mut line = format!("pid {:<8} {:<16}", h.pid, h.comm);
    // Writing to a String cannot fail.
    let _ = write!(line, " state {}", h.state.unwrap_or('?'));
    if let Some(uid) = h.uid {
        let _ = write!(line, "  uid {uid}");
    }
    if let Some(inner) = h.inner_pid {
        let _ = write!(line, "  (pid {inner} inside)");
    }
    let nodes: Vec<String> = h.nodes.iter().map(|(n, count)| format!("{n} x{count}")).collect();
    let _ = write!(line, "  {}", nodes.join(", "));
    if let Some(heap) = seen.heap(h, gpu) {
        let (allocated, reserved) = (bytes(heap.allocated_bytes), bytes(heap.reserved_bytes));
        let _ = write!(line, "  GLake: {allocated} allocated of {reserved} reserved");
    }
    if let Some(title) = workload(h, seen.host) {
        let _ = write!(line, "  {title}");
    }
    if let Some(cgroup) = &h.cgroup {
        let _ = write!(line, "  cgroup {cgroup}");
    }
    if h.state == Some('Z') {
        line.push_str("  ZOMBIE: its parent has not waited for it");
    }
    line
}

fn stuck_lines(out: &mut String, stuck: &[&Stuck]) -> std::fmt::Result {
    if stuck.is_empty() {
        return writeln!(out, "STUCK       no task seen waiting or spinning in the driver");
    }
    for s in stuck {
        let doing = if s.state == 'D' { "waits and cannot be killed (D)" } else { "runs in the driver (R)" };
        writeln!(out, "STUCK       task {} {} of pid {}: {doing}", s.tid, s.comm, s.pid)?;
        match &s.stack {
            Some(stack) => stack.iter().take(8).try_for_each(|f| writeln!(out, "              {f}"))?,
            None => {
                writeln!(out, "              its kernel stack may not be read -> needs root (CAP_SYS_ADMIN)")?
            }
        }
        if let Some(words) = meaning(s) {
            writeln!(out, "            {words}")?;
        }
    }
    Ok(())
}

/// What a stack means where that is known.
fn meaning(s: &Stuck) -> Option<&'static str> {
    let has = |name: &str| s.stack.as_ref().is_some_and(|st| st.iter().any(|f| f.contains(name)));
    if has("evict") && has("[nvidia_uvm]") {
        return Some(
            "UVM pushes memory out of the GPU and does not come to an end: not a busy GPU. A reset will be refused; \
             restart the\n            machine, then avoid managed memory beyond GPU memory, or load nvidia_uvm with \
             uvm_disable_hmm=1",
        );
    }
    has("uvm_spin_loop")
        .then_some("UVM waits for the GPU to answer: if it stays so, the GPU hangs; see glake events")
}

fn to_json(chosen: &[(usize, &Gpu)], seen: &Seen<'_>) -> Value {
    let found = seen.found;
    let gpus: Vec<Value> = chosen
        .iter()
        .map(|(index, gpu)| {
            let holding = holding(found, gpu);
            let stuck: Vec<Value> = found
                .stuck
                .iter()
                .filter(|s| concerns(s, &holding, found))
                .map(|s| {
                    json!({"pid": s.pid, "tid": s.tid, "comm": s.comm, "state": s.state.to_string(),
                           "stack": s.stack, "meaning": meaning(s)})
                })
                .collect();
            json!({"gpu": index, "pci": gpu.pci, "UUID": gpu.uuid, "model": gpu.model, "minor": gpu.minor,
                   "holders": gpu.minor.map(|_| holding.iter().map(|h| holder_json(h, gpu, seen)).collect::<Vec<_>>()),
                   "stuck": stuck,
                   "memory_used_bytes": seen.memory(gpu).ok().map(|held| held.used),
                   "memory_by_process": seen.memory(gpu).ok().map(|held| held.processes.iter()
                       .map(|(pid, n)| json!({"pid": pid, "bytes": n})).collect::<Vec<_>>()),
                   "memory_without_process_bytes": seen.memory(gpu).ok().and_then(Held::without_process)})
        })
        .collect();
    json!({"schema": 1, "gpus": gpus, "processes_looked_at": found.looked,
           "processes_refused": found.refused, "whole_host": found.whole_host})
}

fn holder_json(h: &Holder, gpu: &Gpu, seen: &Seen<'_>) -> Value {
    let nodes: serde_json::Map<String, Value> =
        h.nodes.iter().map(|(n, count)| (n.to_string(), json!(count))).collect();
    json!({"pid": h.pid, "inner_pid": h.inner_pid, "comm": h.comm, "uid": h.uid,
           "state": h.state.map(|s| s.to_string()), "cgroup": h.cgroup, "workload": workload(h, seen.host),
           "open": nodes, "allocator": seen.heap(h, gpu)})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::heaps::{HeapFile, HeapProcess};
    use std::collections::BTreeMap;

    fn gpu(minor: Option<u32>) -> Gpu {
        Gpu { pci: "0000:3b:00.0".into(), uuid: None, minor, model: Some("NVIDIA H200".into()) }
    }

    fn holder(pid: i32, minor: u32) -> Holder {
        Holder {
            pid,
            inner_pid: None,
            comm: "python".into(),
            uid: Some(0),
            state: Some('S'),
            cgroup: None,
            nodes: BTreeMap::from([(Node::Gpu(minor), 4), (Node::Other("nvidia-uvm"), 2)]),
        }
    }

    fn stuck(pid: i32, frames: &[&str]) -> Stuck {
        let stack = Some(frames.iter().map(|f| (*f).to_owned()).collect());
        Stuck { pid, tid: pid, comm: "UVM GPU1 BH".into(), state: 'R', stack }
    }

    #[test]
    fn only_holders_of_this_gpu_are_shown_and_what_is_not_known_is_said() {
        let found = Holders {
            holders: vec![holder(5, 0), holder(6, 1)],
            refused: 3,
            looked: 40,
            ..Holders::default()
        };
        let (heaps, host) = (Heaps::default(), Inventory::default());
        let seen = Seen { found: &found, heaps: &heaps, host: &host, memory: None };
        let text = to_text(&[(1, &gpu(Some(1)))], &seen);
        assert!(text.contains("pid 6 ") && !text.contains("pid 5 "), "{text}");
        assert!(text.contains("nvidia1 x4, nvidia-uvm x2"), "{text}");
        assert!(text.contains("3 of 40 processes could not be looked into"), "{text}");
        assert!(text.contains("only this pid namespace"), "{text}");
        assert!(text.contains("MEMORY      with no process: cannot tell"), "{text}");
        let text = to_text(&[(0, &gpu(None))], &seen);
        assert!(text.contains("HELD BY     cannot tell"), "{text}");
    }

    #[test]
    fn a_holder_that_runs_glakes_allocator_says_what_it_holds_on_this_gpu() {
        let found =
            Holders { holders: vec![holder(5, 0), holder(6, 0)], whole_host: true, ..Holders::default() };
        let on = |pci: &str, gib: u64| HeapGpu {
            pci: Some(pci.into()),
            allocated_bytes: gib << 30,
            reserved_bytes: (2 * gib) << 30,
            ..HeapGpu::default()
        };
        let gpus = vec![on("0000:19:00.0", 9), on("0000:3b:00.0", 21)];
        let said = HeapFile { pid: 6, gpus, ..HeapFile::default() };
        let mut heaps = Heaps::default();
        heaps.processes.push(HeapProcess { pid: 6, said, ..HeapProcess::default() });
        let host = Inventory::default();
        let seen = Seen { found: &found, heaps: &heaps, host: &host, memory: None };
        let text = to_text(&[(0, &gpu(Some(0)))], &seen);
        assert_eq!(text.matches("GLake: 21.0 GiB allocated of 42.0 GiB reserved").count(), 1, "{text}");
        assert!(!text.contains("9.0 GiB"), "another GPU's: {text}");
        let json = to_json(&[(0, &gpu(Some(0)))], &seen);
        assert_eq!(json["gpus"][0]["holders"][1]["allocator"]["reserved_bytes"], 42_u64 << 30);
        assert_eq!(json["gpus"][0]["holders"][0]["allocator"], Value::Null);
    }

    #[test]
    fn memory_that_no_process_has_is_told_and_where_nvml_does_not_answer_so_is_that() {
        let (found, heaps, host) = (Holders::default(), Heaps::default(), Inventory::default());
        let gib = |n: u64| n << 30;
        let one = |processes| Held { pci: "0000:3b:00.0".into(), total: gib(141), used: gib(40), processes };
        let text = |memory: std::result::Result<&[Held], &Error>| {
            let seen = Seen { found: &found, heaps: &heaps, host: &host, memory: Some(memory) };
            (to_text(&[(0, &gpu(Some(0)))], &seen), to_json(&[(0, &gpu(Some(0)))], &seen))
        };
        let (orphaned, json) = text(Ok(&[one(vec![(7, Some(gib(1)))])]));
        assert!(
            orphaned.contains("40.0 GiB used of 141 GiB: pid 7 1.00 GiB; 39.0 GiB with NO PROCESS"),
            "{orphaned}"
        );
        assert_eq!(json["gpus"][0]["memory_without_process_bytes"], gib(39));
        let (unknown, json) = text(Ok(&[one(vec![(7, None)])]));
        assert!(unknown.contains("with no process: cannot tell"), "{unknown}");
        assert_eq!(json["gpus"][0]["memory_without_process_bytes"], Value::Null);
        let error = Error::new(Kind::TimedOut, "NVML has not answered for 5 s");
        let (silent, json) = text(Err(&error));
        assert!(silent.contains("MEMORY      cannot tell: NVML has not answered"), "{silent}");
        assert_eq!(json["gpus"][0]["memory_used_bytes"], Value::Null);
        let (other, _) = text(Ok(&[]));
        assert!(other.contains("does not answer for this GPU"), "{other}");
    }

    /// Case G01.
    #[test]
    fn a_driver_thread_that_evicts_for_ever_is_not_called_a_busy_gpu() {
        let frames = ["uvm_spin_loop+0x1/0x2 [nvidia_uvm]", "evict_root_chunk+0x3/0x4 [nvidia_uvm]"];
        let found = Holders { stuck: vec![stuck(900, &frames)], whole_host: true, ..Holders::default() };
        let (heaps, host) = (Heaps::default(), Inventory::default());
        let seen = Seen { found: &found, heaps: &heaps, host: &host, memory: None };
        let text = to_text(&[(0, &gpu(Some(0)))], &seen);
        assert!(text.contains("not a busy GPU") && text.contains("uvm_disable_hmm=1"), "{text}");
        let json = to_json(&[(0, &gpu(Some(0)))], &seen);
        assert_eq!(json["gpus"][0]["stuck"][0]["tid"], 900);
        assert_eq!(json["gpus"][0]["memory_without_process_bytes"], Value::Null);
    }
}
