//! `glake run` as a process: what it reads of this kernel, and what it prints and answers of it.

use glake_tests::agent::{Setup, bytes_read, can_watch, disk_load, get, load_until_counted, metric, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::{collections::BTreeSet, fs};

#[test]
fn a_disk_s_bytes_arrive_in_the_state_and_in_the_metrics() {
    if !can_watch() {
        return;
    }
    let agent = Setup::new(&["--interval", "200ms"]).start();
    let before = bytes_read(&agent);
    load_until_counted(&agent, before);
    let state = agent.json("/api/v1/state");
    let commands = |w: &Value| w["commands"].as_array().unwrap().iter().any(|c| c == "dd");
    let dd = state["workloads"]
        .as_array()
        .unwrap()
        .iter()
        .find(|w| commands(w))
        .expect("dd is told apart")
        .clone();
    assert!(dd["read"]["total"].as_u64().unwrap() >= 1 << 20, "{dd}");
    let body = agent.get("/metrics");
    assert!(
        metric(&body, &["glake_block_io_bytes_total{", "operation=\"read\""]) >= f64::from(1 << 20),
        "{body}"
    );
    assert!(metric(&body, &["glake_probe_attached{", "required=\"true\""]) >= 1.0, "{body}");
    assert!(!body.contains("pid="), "a process id is no label");
    let coverage = state["coverage"].as_array().unwrap();
    assert!(coverage.iter().any(|c| c["family"] == "block" && c["state"] != "no"), "{coverage:?}");
}

#[test]
fn one_look_prints_rates_and_coverage_and_ends() {
    if !can_watch() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let look =
        Setup::new(&["--once", "--json", "--interval", "200ms"]).command(folder.path()).output().unwrap();
    let state: Value = serde_json::from_slice(&look.stdout).unwrap();
    assert!(state["interval_ns"].as_u64().unwrap() >= 200_000_000);
    let degraded = state["health"]["status"] == "degraded";
    assert_eq!(look.status.code(), Some(if degraded { 3 } else { 0 }), "{}", state["health"]);
}

/// The time that a line of `--lines` begins with, and the rest.
fn timed(line: &str) -> Option<(&str, &str)> {
    let (time, rest) = line.split_once(' ')?;
    let digits = time.bytes().filter(u8::is_ascii_digit).count();
    (time.len() == 9 && time.ends_with('Z') && digits == 6).then_some((time, rest.trim_start()))
}

#[test]
fn every_line_is_a_busy_device_or_a_sentence_under_its_time() {
    if !can_watch() {
        return;
    }
    let mut agent = Setup::new(&["--lines", "--interval", "200ms"]).start();
    let row = wait("a line with what was written", || {
        disk_load();
        let printed = agent.printed();
        let rows = printed.lines().filter_map(timed).map(|(_, rest)| rest.split_whitespace());
        let row = |words: std::str::SplitWhitespace| words.map(str::to_owned).collect::<Vec<_>>();
        rows.map(row).find(|row| row.len() >= 10 && row[1].ends_with("/s") && row[5] == "MB/s")
    });
    assert!(row[1] != "0/s" && !row[0].ends_with(','), "{row:?}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
    let printed = agent.printed();
    for line in printed.lines() {
        let heading = line.starts_with("TIME ") && line.contains(" DEVICE ") && line.ends_with("ERRORS");
        assert!(heading || timed(line).is_some(), "{line:?} in\n{printed}");
        assert!(!line.contains("nothing is watched"), "{printed}");
    }
}

#[test]
fn a_run_for_some_time_ends_by_itself_and_its_exit_code_says_how_well_it_saw() {
    if !can_watch() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(&["--for", "1s", "--json", "--interval", "200ms", "--listen", "127.0.0.1:0"]);
    let ran = setup.command(folder.path()).output().unwrap();
    let states: Vec<Value> =
        String::from_utf8_lossy(&ran.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // How many intervals fit into a second is the machine's business, and none may.
    let degraded = states.last().map(|state| state["health"]["status"] == "degraded");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!([Some(0), Some(3)].contains(&ran.status.code()), "{said}");
    assert!(degraded.is_none_or(|d| ran.status.code() == Some(if d { 3 } else { 0 })), "{said}");
}

#[test]
fn a_disabled_required_probe_degrades_and_says_so() {
    if !can_watch() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut all = vec!["--once", "--json", "--interval", "200ms"];
        all.extend(args);
        let ran = Setup::new(&all).command(folder.path()).output().unwrap();
        (ran.status.code(), serde_json::from_slice::<Value>(&ran.stdout).unwrap_or_default())
    };
    let (_, state) = run(&[]);
    let required =
        state["probes"].as_array().unwrap().iter().find(|p| p["required"] == true && p["state"] == "on");
    let name = required.expect("a required probe is on")["name"].as_str().unwrap().to_owned();
    let (code, state) = run(&["--disable-probe", &name]);
    assert_eq!(code, Some(3));
    let reasons = state["health"]["reasons"].to_string();
    assert!(reasons.contains(&name), "{reasons}");
    let log = Setup::new(&["--disable-probe", &name]).start().log();
    assert!(log.contains("warning: degraded: ") && log.contains(&name), "it is said at the start: {log}");
    let misspelt = &name[1..];
    let refused =
        Setup::new(&["--once", "--disable-probe", misspelt]).command(folder.path()).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains(&format!("did you mean {name}?")), "{said}");
}

#[test]
fn it_stays_under_forty_mebibytes() {
    if !can_watch() {
        return;
    }
    let agent = Setup::new(&["--interval", "200ms", "--profile", "full"]).start();
    disk_load();
    for _ in 0..20 {
        agent.get("/metrics");
        get(agent.address, "/metrics", "Accept: application/openmetrics-text\r\n");
        agent.get("/api/v1/state");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").trim().parse().unwrap();
    assert!(kib < 40 * 1024, "peak resident memory {kib} KiB");
}

/// Names of the probes that are on.
fn on(state: &Value) -> BTreeSet<String> {
    let probes = state["probes"].as_array().unwrap().iter().filter(|p| p["state"] == "on");
    probes.map(|p| p["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_full_profile_lasts_as_long_as_asked_and_then_the_configured_one_is_back() {
    if !can_watch() {
        return;
    }
    // A slow machine may need longer than the first of them for an interval to be printed.
    for seconds in ["2s", "12s", "45s"] {
        let args = ["--full-for", seconds, "--interval", "200ms", "--lines", "--json"];
        let mut agent = Setup::new(&args).start();
        agent.wait_for_log("profile light");
        let light = on(&agent.json("/api/v1/state"));
        agent.signal(Signal::TERM);
        assert_eq!(agent.ended().code(), Some(0));
        let printed = agent.printed();
        let states = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let probes: Vec<BTreeSet<String>> = states.map(|state| on(&state)).collect();
        let (first, last) = (probes.first().cloned().unwrap_or_default(), probes.last().cloned());
        if first.len() > light.len() {
            assert!(first.is_superset(&light) && !light.is_empty(), "{first:?} {light:?}");
            assert_eq!(last, Some(light), "and it stays light to the end");
            return;
        }
    }
    panic!("no state showed more probes than the profile light");
}

/// A shell line that hides tracefs from the program in `"$@"`, and shows afterwards what is where it belongs.
const HIDDEN: &str = "mount -t tmpfs none /sys/kernel/tracing; mount -t tmpfs none /sys/kernel/debug; \
    \"$@\"; ls -A /sys/kernel/tracing";

fn without_tracefs(more: &[&str]) -> (Value, String) {
    let mut setup = Setup::new(&["--once", "--json", "--interval", "200ms"]);
    let words = ["unshare", "--mount", "sh", "-c", HIDDEN, "sh"];
    setup.before = words.iter().chain(more).map(|word| (*word).to_owned()).collect();
    let folder = tempfile::tempdir().unwrap();
    let ran = setup.command(folder.path()).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    let (state, rest) = text.split_once('\n').expect("a state");
    (serde_json::from_str(state).unwrap(), rest.to_owned())
}

/// Case I13.
#[test]
fn where_tracefs_is_not_mounted_it_is_mounted_for_the_agent_alone() {
    if !can_watch() {
        return;
    }
    let swiotlb = |state: &Value| {
        let all = state["coverage"].as_array().unwrap().clone();
        all.into_iter().find(|c| c["family"] == "swiotlb").unwrap()
    };
    let (state, left) = without_tracefs(&[]);
    assert_eq!(swiotlb(&state)["state"], "yes", "{state}");
    assert_eq!(left, "", "nobody else sees it");
    let (state, _) = without_tracefs(&["setpriv", "--bounding-set", "-sys_admin"]);
    let seen = swiotlb(&state);
    assert_eq!(seen["state"], "no", "mounting needs CAP_SYS_ADMIN: {seen}");
    assert!(seen["missing"][0].as_str().unwrap().contains("mount -t tracefs"), "{seen}");
}
