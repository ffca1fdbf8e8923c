//! `glake run` as a process on the network: who may ask, what they may cost, and that it asks nobody.

use glake_tests::agent::{Agent, Setup, can_watch, disk_load, wait};
use rustix::process::Signal;
use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

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

/// Whether a new connection gets an answer: while all places are taken it is closed without one.
fn answers(agent: &Agent) -> bool {
    let Ok(mut stream) = TcpStream::connect(agent.address) else { return false };
    let mut answer = String::new();
    let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let asked = stream.write_all(request).and_then(|()| stream.read_to_string(&mut answer));
    asked.is_ok() && answer.starts_with("HTTP/1.1 200")
}

/// Descriptors that the agent has open.
fn descriptors(agent: &Agent) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count()
}

#[test]
fn a_thousand_connections_cost_a_bounded_number_of_descriptors_and_all_are_given_back() {
    if !can_watch() {
        return;
    }
    let agent = Setup::new(&[]).start();
    let before = descriptors(&agent);
    let mut crowd: Vec<TcpStream> = Vec::new();
    let mut most = 0;
    for i in 0..1000 {
        // The kernel may refuse some when its queue is full.
        crowd.extend(TcpStream::connect(agent.address));
        // This side has a limit of its own.
        crowd.truncate(500);
        if i % 50 == 0 {
            most = most.max(descriptors(&agent));
        }
    }
    assert!(most <= before + 64 + 1, "{before} descriptors before, {most} in the crowd");
    drop(crowd);
    wait("the agent answers again", || answers(&agent).then_some(()));
    wait("all descriptors are given back", || (descriptors(&agent) <= before).then_some(()));
}

#[test]
fn whoever_sends_a_byte_at_a_time_or_headers_without_end_is_closed_and_others_are_served() {
    if !can_watch() {
        return;
    }
    let agent = Setup::new(&[]).start();
    let mut endless = TcpStream::connect(agent.address).unwrap();
    endless.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    let line = format!("X-Filler: {}\r\n", "a".repeat(1000));
    // A connection that was closed refuses what is written sooner or later.
    wait("headers without end are refused", || endless.write_all(line.as_bytes()).is_err().then_some(()));
    let mut slow = TcpStream::connect(agent.address).unwrap();
    let mut request =
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ".iter().copied().chain(std::iter::repeat(b'a'));
    wait("a byte at a time is refused", || {
        slow.write_all(&[request.next().unwrap_or(b'a')]).is_err().then_some(())
    });
    assert!(agent.get("/metrics").contains("glake_build_info"));
}

#[test]
fn many_sighups_during_scrapes_leave_it_answering() {
    if !can_watch() {
        return;
    }
    let mut agent = Setup::new(&["--interval", "200ms"]).start();
    for _ in 0..50 {
        agent.signal(Signal::HUP);
        assert!(agent.get("/metrics").contains("glake_config_last_reload_successful 1"));
    }
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0), "{}", agent.log());
}
