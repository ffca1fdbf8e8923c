//! Xid reports by each source that there is, against the number of calls of the driver's reporting function.

use glake::events::{
    event::{Event, What},
    sample::{ProbeState, Sample},
};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::{
    lab::{Guest, Kernel, Outcome},
    readings::{equal, the_probe},
};

const GPU: &str = "0000:00:00.0";

pub fn tests(kernel: &Kernel) -> Vec<Trial> {
    if !kernel.version.starts_with("6.12.") {
        return Vec::new();
    }
    let guest = Guest::new(kernel, "xid.sh", &["--uvm", "550", "--disk", "serial=slow,size=64"]);
    vec![
        guest.test("Xid: by a kprobe where the driver has no trace point, exactly", kprobe),
        guest.test("Xid: nvidia.ko is not held, and counts go on when it is loaded again", reloaded),
        guest.test("Xid: a driver with the trace point is watched by that, with its text", traced),
        guest.test("Xid: by the kernel log where nothing else may be watched", logged),
        guest.test("Xid: the agent's count is exact and its record names the process", recorded),
    ]
}

/// Reports of a code on a device by a source.
fn count(sample: &Sample, pci: &str, code: u32, source: &str) -> u64 {
    let all = sample.xid.iter().flatten();
    let those = all.filter(|x| (x.pci.as_str(), x.code, x.source.as_str()) == (pci, code, source));
    those.map(|x| x.count).sum()
}

fn total(sample: &Sample) -> u64 {
    sample.xid.iter().flatten().map(|x| x.count).sum()
}

/// Source, code and text of the Xids among events.
fn told(guest: &Outcome, file: &str) -> Result<Vec<(String, u32, String)>, Failed> {
    let events: Vec<Event> = guest.json(file)?;
    let xid = |e: Event| match e.what {
        What::Xid { pci, code, message, .. } if pci == GPU => Some((e.source, code, message)),
        _ => None,
    };
    Ok(events.into_iter().filter_map(xid).collect())
}

fn kprobe(guest: &Outcome) -> Result<(), Failed> {
    let none = guest.sample("none")?;
    equal("without the module", the_probe(&none, "xid")?.state, ProbeState::Off)?;
    let sample = guest.sample("kprobe")?;
    let found = the_probe(&sample, "xid")?;
    equal(&format!("{:?}", found.reason), found.state, ProbeState::On)?;
    equal("how", found.how.as_str(), "nv_report_error (kprobe)")?;
    equal("at first", total(&guest.sample("before")?), 0)?;
    let other = guest.text("other.txt")?;
    equal("31", count(&sample, GPU, 31, "kprobe"), 5)?;
    equal("79", count(&sample, other.trim(), 79, "kprobe"), 2)?;
    equal("all sources together", total(&sample), 7)?;
    let expected = vec![("nv_report_error (kprobe)".to_owned(), 31, String::new()); 5];
    equal("events", told(guest, "kprobe_events")?, expected)
}

fn reloaded(guest: &Outcome) -> Result<(), Failed> {
    equal("unloading", guest.text("unload_status.txt")?.trim(), "0")?;
    let gone = guest.sample("gone")?;
    equal("state", the_probe(&gone, "xid")?.state, ProbeState::Off)?;
    equal("kept", count(&gone, GPU, 31, "kprobe"), 5)?;
    equal("back", the_probe(&guest.sample("back")?, "xid")?.state, ProbeState::On)?;
    equal("goes on", count(&guest.sample("again")?, GPU, 31, "kprobe"), 5 + 4)?;
    let events: Vec<Event> = guest.json("again_events")?;
    let said = |e: &Event| match &e.what {
        What::Probe { probe, detail } if probe == "xid" => detail.split(' ').next().map(str::to_owned),
        _ => None,
    };
    let said: Vec<String> = events.iter().filter_map(said).collect();
    equal("said", said, vec!["detached:".to_owned(), "attached:".to_owned()])
}

fn traced(guest: &Outcome) -> Result<(), Failed> {
    let (before, sample) = (guest.sample("traced_before")?, guest.sample("traced")?);
    equal("how", the_probe(&before, "xid")?.how.as_str(), "nvidia:nvidia_dev_xid (trace point)")?;
    equal("by the trace point", count(&sample, GPU, 31, "tracepoint"), 3)?;
    equal("by the kprobe before", count(&sample, GPU, 31, "kprobe"), 5 + 4)?;
    let texts: Vec<_> = told(guest, "traced_events")?.into_iter().map(|(_, _, text)| text).collect();
    equal("texts", texts, (1..=3).map(|i| format!("report {i} of 3")).collect())
}

fn logged(guest: &Outcome) -> Result<(), Failed> {
    let sample = guest.sample("log")?;
    equal("xid", the_probe(&sample, "xid")?.state, ProbeState::Off)?;
    let log = the_probe(&sample, "xid_log")?;
    equal("the log", (log.state, log.how.as_str()), (ProbeState::On, "kernel log (lower bound)"))?;
    equal("at first", total(&guest.sample("log_before")?), 0)?;
    equal("31", count(&sample, GPU, 31, "kmsg"), 2)?;
    equal("all", total(&sample), 3)
}

fn recorded(guest: &Outcome) -> Result<(), Failed> {
    let record: Value = guest.json("record")?;
    let pid: u64 = guest.text("pid.txt")?.trim().parse().map_err(|e| format!("pid: {e}"))?;
    equal("pid", record["who"]["pid"].as_u64(), Some(pid))?;
    equal("exact", record["codes"]["31"]["exact"].as_u64(), Some(3))?;
    equal("log", record["codes"]["31"]["log"].as_u64(), Some(1))?;
    let metrics = guest.text("metrics.txt")?;
    let series = r#"glake_gpu_xid_errors_total{pci_bus_id="00000000:00:00.0",xid="31",action="restart_app",source="kprobe"} 3"#;
    let of = |name: &'static str| metrics.lines().filter(|l| l.starts_with(name)).collect::<Vec<_>>();
    equal("series", of("glake_gpu_xid_errors_total{"), vec![series])?;
    equal("without a line", of("glake_gpu_xid_unlogged_total "), vec!["glake_gpu_xid_unlogged_total 2"])
}
