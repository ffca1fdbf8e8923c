//! `glake run` as a process: how it starts, is told things, and ends.

use glake_tests::{
    agent::{Agent, Setup, can_watch, metric, wait},
    binary,
};
use rustix::process::Signal;
use std::{
    fs,
    io::Write,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixDatagram,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

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
fn the_default_port_keeps_clear_of_the_neighbours() {
    let ran = Command::new(binary::path()).args(["config", "show"]).output().unwrap();
    let shown = String::from_utf8(ran.stdout).unwrap();
    assert!(shown.contains("http.listen = \"127.0.0.1:9517\""), "{shown}");
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus/scrape.yml").exists());
}

#[test]
fn an_agent_that_cannot_keep_gpu_events_is_degraded_and_says_why() {
    if !can_watch() {
        return;
    }
    let mut setup = Setup::new(&["--interval", "200ms"]);
    setup.env = vec![("GLAKE_EVENT_STORE".into(), "/proc/events".into())];
    let agent = setup.start();
    let health = wait("a reading", || Some(agent.get("/healthz")).filter(|text| text.contains("not kept")));
    assert!(health.contains("degraded") && health.contains("/proc/events"), "{health}");
    let healthy = Setup::new(&["--interval", "200ms"]).start();
    assert!(!healthy.get("/healthz").contains("not kept"));
}

#[test]
fn a_damaged_store_is_told_at_the_start_and_the_agent_runs() {
    if !can_watch() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("events.log"), [0x5a; 300]).unwrap();
    let mut setup = Setup::new(&[]);
    setup.env = vec![("GLAKE_EVENT_STORE".into(), folder.path().display().to_string())];
    let agent = setup.start();
    assert!(agent.log().contains("300 bytes are damaged"), "{}", agent.log());
    assert!(agent.get("/healthz").contains("\"status\":\"ok\""), "what comes is kept");
}
