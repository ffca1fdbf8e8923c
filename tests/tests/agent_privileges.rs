//! `glake run` as a process: a test per row of docs/permissions.md takes the capability away.

use glake_tests::{
    agent::{Setup, bytes_read, can_watch, load_until_counted},
    binary,
};
use serde_json::Value;
use std::{fs, path::Path, process::Command};

fn status_field(pid: u32, task: &str, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().to_owned()
}

fn tasks(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn it_keeps_four_capabilities_and_sealed_none_and_goes_on_counting() {
    if !can_watch() {
        return;
    }
    // capability.h: DAC_READ_SEARCH 2, SYSLOG 34, PERFMON 38, BPF 39.
    let kept: u64 = 1 << 2 | 1 << 34 | 1 << 38 | 1 << 39;
    for (args, allowed, uid) in [
        (&["--interval", "200ms"][..], kept, "0"),
        (&["--interval", "200ms", "--user", "65534:65534"], kept, "65534"),
        (&["--interval", "200ms", "--user", "65534:65534", "--seal"], 0, "65534"),
    ] {
        let agent = Setup::new(args).start();
        let before = bytes_read(&agent);
        for task in tasks(agent.pid()) {
            for set in ["CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh"] {
                let held = u64::from_str_radix(&status_field(agent.pid(), &task, set), 16).unwrap();
                assert_eq!(held & !allowed, 0, "{args:?}: {set} of task {task} is {held:x}");
            }
            assert_eq!(status_field(agent.pid(), &task, "NoNewPrivs"), "1");
            assert!(status_field(agent.pid(), &task, "Uid").split('\t').all(|id| id == uid), "{args:?}");
        }
        load_until_counted(&agent, before);
        let sealed = agent.log().contains("sealed:") && agent.log().contains("refused from now on");
        assert_eq!(sealed, allowed == 0, "{}", agent.log());
    }
}

#[test]
fn without_the_capabilities_to_attach_it_runs_blind_and_says_why() {
    if !can_watch() {
        return;
    }
    // CAP_SYS_ADMIN stands in for the other two where it is held.
    for lost in ["bpf,sys_admin", "perfmon,sys_admin"] {
        let list = format!("-{}", lost.replace(',', ",-"));
        let mut setup = Setup::new(&["--once", "--json", "--interval", "200ms"]);
        setup.before = ["setpriv", "--bounding-set", &list].map(str::to_owned).into();
        let folder = tempfile::tempdir().unwrap();
        let ran = setup.command(folder.path()).output().unwrap();
        let state: Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
        assert_eq!(ran.status.code(), Some(3), "{lost}: {}", String::from_utf8_lossy(&ran.stderr));
        let block =
            state["coverage"].as_array().unwrap().iter().find(|c| c["family"] == "block").unwrap().clone();
        assert_eq!(block["state"], "no", "{lost}: {block}");
        assert!(!block["missing"].as_array().unwrap().is_empty(), "{lost}: {block}");
        assert_eq!(state["block"], Value::Null, "{lost}: what is not watched is unknown, not zero");
    }
}

/// The state of `--once`, started by `setpriv` with these arguments.
fn once_as(setpriv: &[&str]) -> Value {
    let mut setup = Setup::new(&["--once", "--json", "--interval", "200ms"]);
    setup.before = ["setpriv"].iter().chain(setpriv).map(|word| (*word).to_owned()).collect();
    let folder = tempfile::tempdir().unwrap();
    let ran = setup.command(folder.path()).output().unwrap();
    serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&ran.stderr)))
}

fn coverage(state: &Value, family: &str) -> Value {
    state["coverage"].as_array().unwrap().iter().find(|c| c["family"] == family).unwrap().clone()
}

/// Cases I03 and I05: kernel types come from the files under `/sys/kernel/btf`, never by id, which would need CAP_SYS_ADMIN.
#[test]
fn without_cap_sys_admin_all_is_watched_but_the_cost_of_the_probes_is_unknown() {
    if !can_watch() {
        return;
    }
    let state = once_as(&["--bounding-set", "-sys_admin"]);
    assert_eq!(coverage(&state, "block")["state"], "yes", "{state}");
    let with = once_as(&["--bounding-set", "+sys_admin"]);
    for (state, known) in [(state, false), (with, true)] {
        let probes = state["probes"].as_array().unwrap();
        let block = probes.iter().find(|p| p["name"] == "block_complete").unwrap();
        assert_eq!(block["run_time_ns"].is_u64(), known, "{block}");
    }
}

#[test]
fn without_cap_dac_read_search_another_user_loses_the_classic_trace_points_and_is_told_why() {
    if !can_watch() || !can_be_read_by_others(&binary::path()) {
        return;
    }
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let with = |capabilities: &str| {
        let flags = ["--inh-caps", capabilities, "--ambient-caps", capabilities];
        once_as(&[&user[..], &flags[..]].concat())
    };
    let state = with("+bpf,+perfmon");
    let swiotlb = coverage(&state, "swiotlb");
    assert_eq!(swiotlb["state"], "no", "{swiotlb}");
    assert!(swiotlb["missing"][0].as_str().unwrap().contains("CAP_DAC_READ_SEARCH"), "{swiotlb}");
    let state = with("+bpf,+perfmon,+dac_read_search");
    assert_eq!(coverage(&state, "swiotlb")["state"], "yes", "{state}");
    assert_eq!(coverage(&state, "block")["state"], "yes", "no root is needed: {state}");
}

/// Whether a user without rights can run the binary: some build folders are closed to others.
fn can_be_read_by_others(program: &Path) -> bool {
    let flags = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let able = Command::new("setpriv").args(flags).arg(program).arg("--version").output();
    let able = able.is_ok_and(|ran| ran.status.success());
    if !able {
        eprintln!("skipped: user 65534 cannot run {}", program.display());
    }
    able
}

#[test]
fn without_cap_syslog_the_kernel_log_is_closed_and_it_says_what_is_lost() {
    let restricted =
        fs::read_to_string("/proc/sys/kernel/dmesg_restrict").is_ok_and(|text| text.trim() == "1");
    if !can_watch() || !restricted {
        eprintln!("skipped: needs kernel.dmesg_restrict=1");
        return;
    }
    let mut setup = Setup::new(&[]);
    setup.before = ["setpriv", "--bounding-set", "-syslog,-sys_admin"].map(str::to_owned).into();
    let agent = setup.start();
    assert!(agent.log().contains("GPU events will name no process"), "{}", agent.log());
    assert!(!Setup::new(&[]).start().log().contains("GPU events will name no process"));
}

#[test]
fn a_user_that_cannot_be_become_is_refused_with_a_sentence() {
    if !can_watch() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(&["--listen", "127.0.0.1:0", "--user", "65534:65534"]);
    setup.before = ["setpriv", "--bounding-set", "-setuid,-setgid"].map(str::to_owned).into();
    let ran = setup.command(folder.path()).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(!ran.status.success() && said.contains("becoming user 65534 of group 65534"), "{said}");
}
