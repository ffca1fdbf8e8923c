//! A running `glake run`: started on a port that the kernel chooses, ended when dropped.

use crate::binary;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// A test that waits longer than this has failed; none passes because of it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Whether probes can be attached here; says why not.
pub fn can_watch() -> bool {
    let able = rustix::process::geteuid().is_root() && glake::events::ebpf::has_object();
    if !able {
        eprintln!("skipped: needs root and a binary with the eBPF programs (cargo xtask test)");
    }
    able
}

/// A running agent.
pub struct Agent {
    child: Child,
    /// Where it answers.
    pub address: SocketAddr,
    log: Arc<Mutex<String>>,
    printed: Arc<Mutex<String>>,
    folder: tempfile::TempDir,
}

/// How to start one.
pub struct Setup {
    /// More arguments after `run`.
    pub args: Vec<String>,
    /// More variables.
    pub env: Vec<(String, String)>,
    /// What stands before the program: `ip netns exec x`.
    pub before: Vec<String>,
}

impl Setup {
    /// `glake run` with these arguments.
    pub fn new(args: &[&str]) -> Setup {
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        Setup { args, env: Vec::new(), before: Vec::new() }
    }

    /// The command, with its lock and its store in `folder`, not yet started.
    pub fn command(&self, folder: &Path) -> Command {
        let program = binary::path().display().to_string();
        let words: Vec<&str> =
            self.before.iter().map(String::as_str).chain([program.as_str(), "run"]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(&self.args);
        // Nothing of the caller's configuration reaches the agent.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GLAKE_"))
        {
            command.env_remove(name);
        }
        command.env("GLAKE_LOCK", folder.join("agent.lock")).env("GLAKE_EVENT_STORE", folder.join("events"));
        command.envs(self.env.iter().map(|(k, v)| (k, v))).stdin(Stdio::null());
        command
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// Where it does not.
    pub fn start(&self) -> Agent {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = self.command(folder.path());
        if !self.args.iter().any(|a| a == "--listen") && !self.args.iter().any(|a| a == "--config") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("glake starts");
        let printed = collect(child.stdout.take().expect("piped"));
        let log = collect(child.stderr.take().expect("piped"));
        let address = "127.0.0.1:0".parse().expect("an address");
        let mut agent = Agent { child, address, log, printed, folder };
        let line = agent.wait_for_log("answering on ");
        let text = line.rsplit([' ', '/']).next().expect("an address");
        agent.address = text.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
        agent
    }
}

/// Gathers what comes through a pipe.
fn collect(pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let copy = Arc::clone(&text);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            copy.lock().expect("no panic").push_str(&(line + "\n"));
        }
    });
    text
}

impl Agent {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its folder with lock and store.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it said so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// What it printed on stdout so far.
    pub fn printed(&self) -> String {
        self.printed.lock().expect("no panic").clone()
    }

    /// The first line of its log that holds `text`.
    ///
    /// # Panics
    /// Where none comes, or it ends before.
    pub fn wait_for_log(&mut self, text: &str) -> String {
        wait("the log", || {
            if let Some(line) = self.log().lines().find(|l| l.contains(text)) {
                return Some(line.to_owned());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the agent ended ({status}) without saying {text:?}:\n{}", self.log());
            }
            None
        })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the agent is there");
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        wait("the agent's end", || self.child.try_wait().expect("a child of ours"))
    }

    /// The body of an answer.
    ///
    /// # Panics
    /// Where the answer is not 200.
    pub fn get(&self, path: &str) -> String {
        let (status, body) = get(self.address, path, "");
        assert_eq!(status, 200, "{path}: {body}\n{}", self.log());
        body
    }

    /// A body as JSON.
    pub fn json(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&self.get(path)).expect("JSON")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A GET with more header lines: status and body.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the agent answers");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// Looks again and again until something is there.
///
/// # Panics
/// After [`DEADLINE`].
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads and writes on a real disk, past the page cache: 1 MiB each way.
///
/// # Panics
/// Where `dd` fails.
pub fn disk_load() {
    // Not /tmp, which may be in memory.
    let folder = tempfile::tempdir_in("/var/tmp").expect("as documented");
    let file = folder.path().join("blocks").display().to_string();
    for args in [
        ["if=/dev/zero", &format!("of={file}"), "bs=4k", "count=256", "oflag=direct"],
        [&format!("if={file}"), "of=/dev/null", "bs=4k", "count=256", "iflag=direct"],
    ] {
        let ran = Command::new("dd").args(args).output().expect("as documented");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
}

/// Loads the disk until the agent has counted a MiB read more than `before`. Each load reads that much, but a busy kernel may
/// leave out a run of a probe (`docs/limits.md`).
///
/// # Panics
/// Where nothing is counted for a minute.
pub fn load_until_counted(agent: &Agent, before: u64) {
    wait("a MiB read", || {
        disk_load();
        (bytes_read(agent) >= before + (1 << 20)).then_some(())
    });
}

/// The sum of a metric's series whose line holds all of `parts`.
///
/// # Panics
/// Where a value is no number.
pub fn metric(body: &str, parts: &[&str]) -> f64 {
    let lines =
        body.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    lines
        .map(|line| line.rsplit(' ').next().expect("as documented").parse::<f64>().expect("as documented"))
        .sum()
}

/// Bytes read from all devices since the agent started.
///
/// # Panics
/// Where the state has none.
pub fn bytes_read(agent: &Agent) -> u64 {
    let state = agent.json("/api/v1/state");
    let devices = state["block"].as_array().expect("as documented");
    let operations = devices.iter().flat_map(|d| d["operations"].as_array().expect("as documented"));
    let reads = operations.filter(|op| op["operation"] == "read");
    reads.map(|op| op["bytes"]["total"].as_u64().expect("as documented")).sum()
}
