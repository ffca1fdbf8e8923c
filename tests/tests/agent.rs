//! `glake run` as a process: the real binary, the real probes of this kernel.

use glake_tests::{
    agent::{Agent, Setup, can_watch, get, wait},
    binary,
};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixDatagram,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Reads and writes on a real disk, past the page cache: 1 MiB each way.
fn disk_load() {
    // Not /tmp, which may be in memory.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("blocks").display().to_string();
    for args in [
        ["if=/dev/zero", &format!("of={file}"), "bs=4k", "count=256", "oflag=direct"],
        [&format!("if={file}"), "of=/dev/null", "bs=4k", "count=256", "iflag=direct"],
    ] {
        let ran = Command::new("dd").args(args).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
}

fn status_field(pid: u32, task: &str, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().to_owned()
}

fn tasks(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
}

/// The sum of a metric's series whose line holds all of `parts`.
fn metric(body: &str, parts: &[&str]) -> f64 {
    let lines =
        body.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn bytes_read(agent: &Agent) -> u64 {
    let state = agent.json("/api/v1/state");
    let devices = state["block"].as_array().unwrap();
    let operations = devices.iter().flat_map(|d| d["operations"].as_array().unwrap());
    let reads = operations.filter(|op| op["operation"] == "read");
    reads.map(|op| op["bytes"]["total"].as_u64().unwrap()).sum()
}

#[test]
fn a_disk_s_bytes_arrive_in_the_state_and_in_the_metrics() {
    if !can_watch() {
        return;
    }
    let agent = Setup::new(&["--interval", "200ms"]).start();
    let before = bytes_read(&agent);
    disk_load();
    wait("a MiB read", || (bytes_read(&agent) >= before + (1 << 20)).then_some(()));
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
fn sigterm_ends_it_within_two_seconds_in_the_middle_of_a_scrape() {
    if !can_watch() {
        return;
    }
    // The best of five: a busy machine may keep one from running for a while.
    let took = (0..5).map(|_| {
        let mut agent = Setup::new(&[]).start();
        let mut half = TcpStream::connect(agent.address).unwrap();
        half.write_all(b"GET /metrics HTTP/1.1\r\nHost: lo").unwrap();
        assert!(agent.get("/livez").contains("ok"), "the half request is accepted by now");
        let start = Instant::now();
        agent.signal(Signal::TERM);
        let status = agent.ended();
        assert_eq!(status.code(), Some(0), "{}", agent.log());
        start.elapsed()
    });
    let within = took.into_iter().any(|took| took < Duration::from_secs(2));
    assert!(within, "five times it took longer");
}

#[test]
fn a_second_agent_is_refused_by_name_and_pid() {
    if !can_watch() {
        return;
    }
    let first = Setup::new(&[]).start();
    let second = Setup::new(&["--listen", "127.0.0.1:0"]).command(first.folder()).output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!("another agent watches this host already: glake with pid {}", first.pid())),
        "{said}"
    );
}

#[test]
fn a_busy_port_is_a_clear_error_before_anything_is_attached() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let ran = Setup::new(&["--listen", &address]).command(folder.path()).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&format!("listening on {address}")) && said.contains("another program answers"),
        "{said}"
    );
}

#[test]
fn beyond_loopback_tls_and_users_are_demanded() {
    let folder = tempfile::tempdir().unwrap();
    let ran = Setup::new(&["--listen", "0.0.0.0:0"]).command(folder.path()).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("no TLS and users") && said.contains("http.web_config"), "{said}");
}

#[test]
fn sighup_takes_a_good_file_whole_and_a_bad_one_not_at_all() {
    if !can_watch() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("glake.toml");
    let write = |text: &str| fs::write(&file, format!("{text}\n[http]\nlisten = \"127.0.0.1:0\"\n")).unwrap();
    write("interval = \"200ms\"");
    let mut agent = Setup::new(&["--config", file.to_str().unwrap()]).start();
    let interval = |agent: &Agent| agent.json("/api/v1/state")["agent"]["interval_ns"].as_u64().unwrap();
    let reload_ok = |agent: &Agent| metric(&agent.get("/metrics"), &["glake_config_last_reload_successful"]);
    assert_eq!((interval(&agent), reload_ok(&agent)), (200_000_000, 1.0));

    write("interval = \"300ms\"");
    agent.signal(Signal::HUP);
    wait("the new interval", || (interval(&agent) == 300_000_000).then_some(()));

    write("interval = \"400ms\"\nprofile = \"full\"\nslow_io = \"9s\"");
    agent.signal(Signal::HUP);
    let line = agent.wait_for_log("reload refused");
    assert!(line.contains("these keys changed and need a restart: profile, slow_io"), "{line}");
    wait("the metric of the refusal", || (reload_ok(&agent) == 0.0).then_some(()));
    assert_eq!(interval(&agent), 300_000_000, "nothing of a refused file is used");

    write("intervall = \"400ms\"");
    agent.signal(Signal::HUP);
    let line = agent.wait_for_log("unknown key");
    assert!(line.contains("glake.toml:1: unknown key intervall -> did you mean interval?"), "{line}");

    write("interval = \"300ms\"");
    agent.signal(Signal::HUP);
    wait("the metric of success", || (reload_ok(&agent) == 1.0).then_some(()));
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
        disk_load();
        wait("a MiB read", || (bytes_read(&agent) >= before + (1 << 20)).then_some(()));
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

#[test]
fn without_cap_sys_admin_the_kernel_s_own_trace_points_are_still_watched() {
    if !can_watch() {
        return;
    }
    let state = once_as(&["--bounding-set", "-sys_admin"]);
    assert_eq!(coverage(&state, "block")["state"], "yes", "{state}");
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

#[test]
fn systemd_hears_ready_watchdog_reload_and_stop() {
    if !can_watch() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut heard = String::new();
    let mut hear = |text: &str| {
        while !heard.contains(text) {
            let mut buffer = [0; 4096];
            let n = socket.recv(&mut buffer).unwrap_or_else(|e| panic!("waiting for {text:?}: {e}\n{heard}"));
            heard.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
            heard.push('\n');
        }
        heard = heard.split_off(heard.find(text).unwrap() + text.len());
    };
    let mut setup = Setup::new(&["--interval", "200ms"]);
    setup.env =
        vec![("NOTIFY_SOCKET".into(), path.display().to_string()), ("WATCHDOG_USEC".into(), "400000".into())];
    let mut agent = setup.start();
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    agent.signal(Signal::HUP);
    hear("RELOADING=1");
    hear("READY=1");
    agent.signal(Signal::TERM);
    hear("STOPPING=1");
    assert_eq!(agent.ended().code(), Some(0));
}

/// A network of its own for the agent, with a way out that leads nowhere: an attempt is counted, not lost.
struct Network(String);

impl Network {
    fn new() -> Network {
        let name = format!("glake-test-{}", std::process::id());
        let network = Network(name.clone());
        let run = |words: &str| {
            let ran = Command::new("ip").args(words.split(' ')).output().unwrap();
            assert!(ran.status.success(), "ip {words}: {}", String::from_utf8_lossy(&ran.stderr));
        };
        run(&format!("netns add {name}"));
        for words in ["link set lo up", "addr add 192.0.2.2/32 dev lo", "route add default dev lo"] {
            run(&format!("-n {name} {words}"));
        }
        network
    }

    fn inside(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(words);
        command
    }

    /// Connections tried and datagrams sent from it, ever.
    fn attempts(&self) -> u64 {
        let text =
            String::from_utf8(self.inside(&["cat", "/proc/net/snmp"]).output().unwrap().stdout).unwrap();
        let number = |protocol: &str, field: &str| {
            let mut lines = text.lines().filter(|l| l.starts_with(protocol));
            let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
            let at = names.split(' ').position(|n| n == field).unwrap();
            values.split(' ').nth(at).unwrap().parse::<u64>().unwrap()
        };
        number("Tcp:", "ActiveOpens") + number("Udp:", "OutDatagrams")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

#[test]
fn no_connection_ever_leaves_it() {
    if !can_watch() {
        return;
    }
    if Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs iproute2");
        return;
    }
    let network = Network::new();
    let mut setup = Setup::new(&["--interval", "200ms", "--json", "--lines"]);
    setup.before = ["ip", "netns", "exec", &network.0].map(str::to_owned).into();
    let mut agent = setup.start();
    disk_load();
    agent.signal(Signal::HUP);
    agent.wait_for_log("configuration read again");
    assert_eq!(network.attempts(), 0);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(network.attempts(), 0, "not even at the end");
    // The count would have shown an attempt.
    let _ = network.inside(&["bash", "-c", "echo > /dev/udp/198.51.100.1/53"]).output();
    assert_eq!(network.attempts(), 1);
    let mut tries = network.inside(&["bash", "-c", "echo > /dev/tcp/198.51.100.1/80"]).spawn().unwrap();
    wait("the attempt that leads nowhere", || (network.attempts() == 2).then_some(()));
    let _ = (tries.kill(), tries.wait());
}

#[test]
fn the_configuration_is_checked_and_shown_with_its_sources() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("glake.toml");
    fs::write(&file, "interval = \"5s\"\n").unwrap();
    let run = |words: &[&str], variables: &[(&str, &str)]| {
        let ran = Command::new(binary::path()).args(words).envs(variables.iter().copied()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (ran.status.code(), text(ran.stdout), text(ran.stderr))
    };
    let path = file.to_str().unwrap();
    let (code, shown, _) = run(&["config", "show", "--config", path], &[("GLAKE_LOG", "warn")]);
    assert_eq!(code, Some(0));
    let line = |key: &str| shown.lines().find(|l| l.starts_with(key)).unwrap().to_owned();
    assert!(line("interval").ends_with(&format!("# {path}:1")), "{shown}");
    assert!(line("log ").ends_with("# environment GLAKE_LOG"), "{shown}");
    assert!(line("http.listen").ends_with("# default"), "{shown}");
    assert_eq!(run(&["config", "check", "--config", path], &[]).0, Some(0));
    fs::write(&file, "\nintervall = \"5s\"\n").unwrap();
    let (code, _, said) = run(&["config", "check", "--config", path], &[]);
    assert_eq!(code, Some(2));
    assert!(said.contains(&format!("{path}:2: unknown key intervall -> did you mean interval?")), "{said}");
}

#[test]
fn a_client_that_hangs_does_not_keep_others_out() {
    if !can_watch() {
        return;
    }
    let agent = Setup::new(&[]).start();
    let hanging: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(agent.address).unwrap()).collect();
    assert!(agent.get("/metrics").contains("glake_build_info"));
    let mut first = &hanging[0];
    first.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(first.read(&mut [0; 64]).unwrap_or(0), 0, "whoever says nothing is closed");
}

#[test]
fn the_default_port_keeps_clear_of_the_neighbours() {
    let ran = Command::new(binary::path()).args(["config", "show"]).output().unwrap();
    let shown = String::from_utf8(ran.stdout).unwrap();
    assert!(shown.contains("http.listen = \"127.0.0.1:9517\""), "{shown}");
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus/scrape.yml").exists());
}
