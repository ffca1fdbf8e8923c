//! The driver's event queue on the real nvidia-uvm of Debian's package, without a GPU. What is expected is what the
//! load program did, and what the driver's own test interface was asked to put into the queue.

use glake::events::uvm::entry::kind;
use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::lab::{Guest, Kernel, Outcome};
use crate::readings::equal;
use crate::uvm_probes::{READS, WRITES};

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    // The package that has the driver is built against Debian's 6.12 headers.
    if !kernel.version.starts_with("6.12.") {
        return Vec::new();
    }
    let guest = Guest::new(kernel, "uvm_tools.sh", &["--uvm", "550", "--numa"]);
    vec![
        guest.test("glake uvm -- COMMAND: CPU faults and migrations are exact", |g| known(g, "command")),
        guest.test("glake uvm --pid: CPU faults and migrations are exact", |g| known(g, "pid")),
        guest.test("glake uvm: injected events become numbers", injected),
        guest.test("glake uvm: events of every type that the driver has arrive, none dropped", every),
        guest.test("glake uvm: a queue too small loses a known number and says so", small),
        guest.test("glake uvm: a process killed in the middle has a summary up to then", killed),
        guest.test("glake uvm --pid on a terminal shows all so far while the process runs", live),
        guest.test("glake uvm: no permission and an unknown release are said with what to do", refused),
        guest.test("glake uvm: nothing is left: the module can be unloaded, a command still runs", unloaded),
    ]
}

fn status(guest: &Outcome, name: &str) -> Result<String, Failed> {
    Ok(guest.text(&format!("{name}_status.txt"))?.trim().to_owned())
}

fn known(guest: &Outcome, name: &str) -> Result<(), Failed> {
    equal("exit status", status(guest, name)?.as_str(), "0")?;
    let summary: Value = guest.json(name)?;
    equal("driver", &summary["driver"].as_str().unwrap_or("")[..4], "550.")?;
    equal("writes", summary["cpu_faults_by_access"]["write"].as_u64(), Some(WRITES))?;
    equal("reads", summary["cpu_faults_by_access"]["read"].as_u64(), Some(READS))?;
    equal("migrations", summary["migrations"].as_u64(), Some(8))?;
    equal("bytes", summary["moved_bytes"].as_u64(), Some(8 * (2 << 20)))?;
    equal("cause", summary["moved"][0]["cause"].as_str(), Some("user"))?;
    equal("dropped", summary["dropped"].as_u64(), Some(0))
}

fn injected(guest: &Outcome) -> Result<(), Failed> {
    let summary: Value = guest.json("command")?;
    equal("GPU faults", summary["gpu_faults"].as_u64(), Some(500))?;
    equal("replays", summary["replays"].as_u64(), Some(7))?;
    equal("fatal faults", summary["fatal"][0]["count"].as_u64(), Some(2))?;
    equal("thrashing", summary["thrashing"].as_u64(), Some(3))?;
    equal("throttled", summary["throttled"].as_u64(), Some(5))?;
    let all = WRITES + READS + 8 + 500 + 7 + 2 + 3 + 5 + 4;
    equal("entries", summary["entries"].as_u64(), Some(all))
}

fn every(guest: &Outcome) -> Result<(), Failed> {
    let summary: Value = guest.json("every")?;
    for (name, n) in kind::NAMES {
        equal(name, summary["entries_by_event"][name].as_u64(), Some(20 + u64::from(n)))?;
    }
    equal("dropped", summary["dropped"].as_u64(), Some(0))?;
    equal("exit status", status(guest, "every")?.as_str(), "0")
}

fn small(guest: &Outcome) -> Result<(), Failed> {
    let summary: Value = guest.json("small")?;
    let (seen, dropped) = (summary["gpu_faults"].as_u64(), summary["dropped_by_event"]["gpu-fault"].as_u64());
    equal("seen and dropped together", seen.zip(dropped).map(|(s, d)| s + d), Some(20_000))?;
    if dropped == Some(0) {
        return Err("nothing was dropped: the test tests nothing".into());
    }
    equal("exit status of a run that dropped events", status(guest, "small")?.as_str(), "3")
}

fn killed(guest: &Outcome) -> Result<(), Failed> {
    let summary: Value = guest.json("killed")?;
    equal("CPU faults", summary["cpu_faults"].as_u64(), Some(16))?;
    equal("ended", summary["ended"].as_bool(), Some(true))?;
    equal("exit status", status(guest, "killed")?.as_str(), "0")
}

fn live(guest: &Outcome) -> Result<(), Failed> {
    let shown = guest.text("live.txt")?;
    for part in [
        "NOW   GPU faults 0 in 0 batches",
        "the process goes on",
        "CPU page faults           16   write 16",
        "address heat",
    ] {
        if !shown.contains(part) {
            return Err(format!("no {part:?} on the screen:\n{shown}").into());
        }
    }
    Ok(())
}

fn refused(guest: &Outcome) -> Result<(), Failed> {
    for (name, parts) in
        [("denied", ["Permission denied", "CAP_SYS_PTRACE"]), ("unknown", ["620.05", "newer GLake"])]
    {
        equal(name, status(guest, name)?.as_str(), "1")?;
        let said = guest.text(&format!("{name}.txt"))?;
        if let Some(part) = parts.iter().find(|part| !said.contains(**part)) {
            return Err(format!("{name}: no {part:?} in {said}").into());
        }
    }
    Ok(())
}

fn unloaded(guest: &Outcome) -> Result<(), Failed> {
    equal("unloading", status(guest, "unload")?.as_str(), "0")?;
    equal("the command's exit status", status(guest, "none")?.as_str(), "7")?;
    let said = guest.text("none.txt")?;
    if said.contains("never opened UVM") { Ok(()) } else { Err(said.into()) }
}
