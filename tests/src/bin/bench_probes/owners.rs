//! An agent on a host where very many processes do I/O: what it keeps of them, and in how much memory.

use super::load::{BLOCK, Load};
use anyhow::{Context, Result, ensure};
use glake_tests::binary;
use serde_json::json;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Processes at a time: enough to be quick, few enough for a small machine.
const AT_ONCE: u32 = 16;

/// Starts an agent, lets so many processes read one block each, and prints what the agent holds before and after.
pub fn measure(load: &Load, owners: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    let config = folder.path().join("glake.toml");
    let lock = folder.path().join("lock");
    std::fs::write(
        &config,
        format!(
            "interval = \"1s\"\nlock = {lock:?}\nevent_store = \"\"\nmax_cpu_percent = 100.0\n\
             [http]\nlisten = \"{address}\"\n"
        ),
    )?;
    let mut command = Command::new(binary::path());
    command.arg("run").arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
    let agent = Agent(command.spawn().context("starting glake run")?, address);
    agent.wait()?;
    let before = agent.look()?;
    let start = Instant::now();
    processes(load, owners)?;
    let took = start.elapsed();
    // A reading that begins now sees everything; with this many workloads on a busy machine it may take seconds.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
    let after = agent.look_after(now)?;
    println!("{owners} processes read one block each in {:.1} s\n", took.as_secs_f64());
    println!("{:<28} {:>14} {:>14}", "", "before", "after");
    for (what, a, b) in [
        ("series of /metrics", before.series, after.series),
        ("bytes of kernel maps", before.map_bytes, after.map_bytes),
        ("resident bytes of the agent", before.resident, after.resident),
        ("reads of all devices", before.reads, after.reads),
        ("bytes read by workloads", before.read_bytes, after.read_bytes),
        ("events dropped", before.dropped, after.dropped),
    ] {
        println!("{what:<28} {a:>14} {b:>14}");
    }
    for line in agent.get("/metrics")?.lines().filter(|l| l.starts_with("glake_events_dropped_total")) {
        if !line.ends_with(" 0") {
            println!("{line}");
        }
    }
    let json = |h: &Held| json!({"series": h.series, "map_bytes": h.map_bytes, "resident_bytes": h.resident, "reads": h.reads, "bytes_read": h.read_bytes, "dropped": h.dropped});
    println!("\n{}", json!({"owners": owners, "before": json(&before), "after": json(&after)}));
    println!(
        "resident: {:.1} MiB, goal 40 MiB: {}",
        after.resident as f64 / f64::from(1 << 20),
        if after.resident < 40 << 20 { "met" } else { "MISSED" }
    );
    let missing = (u64::from(owners) * BLOCK as u64).saturating_sub(after.read_bytes - before.read_bytes);
    if missing > 0 {
        eprintln!("{} reads were not counted for any workload", missing / BLOCK as u64);
    }
    Ok(())
}

fn processes(load: &Load, owners: u32) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut left = owners;
    while left > 0 {
        let now = left.min(AT_ONCE);
        let start = || {
            let mut one = Command::new(&program);
            one.arg("--read-once").arg(load.path()).stdin(Stdio::null()).spawn()
        };
        let mut started = (0..now).map(|_| start()).collect::<std::io::Result<Vec<_>>>()?;
        for child in &mut started {
            ensure!(child.wait()?.success(), "a process could not read {}", load.path().display());
        }
        left -= now;
    }
    Ok(())
}

struct Agent(Child, String);

struct Held {
    series: u64,
    map_bytes: u64,
    resident: u64,
    reads: u64,
    read_bytes: u64,
    dropped: u64,
}

impl Agent {
    fn wait(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match self.get("/metrics") {
                Ok(text) if text.contains("\nglake_block_") => return Ok(()),
                other => ensure!(Instant::now() < end, "the agent did not answer within 60 s: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(&self.1)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.1)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// What it holds once it has read the kernel's counters after this time (seconds since 1970).
    fn look_after(&self, seconds: f64) -> Result<Held> {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let text = self.get("/metrics")?;
            let taken = text.lines().find_map(|l| l.strip_prefix("glake_sample_timestamp_seconds "));
            if taken.and_then(|t| t.parse::<f64>().ok()).is_some_and(|taken| taken > seconds) {
                return self.look();
            }
            ensure!(Instant::now() < end, "no reading within 120 s");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn look(&self) -> Result<Held> {
        let text = self.get("/metrics")?;
        let series = || text.lines().filter(|l| l.starts_with("glake_") || l.starts_with("process_"));
        let sum = |name: &str, with: &str| -> u64 {
            let lines = series().filter(|l| l.starts_with(name) && l.contains(with));
            lines.filter_map(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
        };
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let resident = resident.context("VmRSS of the agent")?.trim().parse::<u64>()? * 1024;
        Ok(Held {
            series: series().count() as u64,
            map_bytes: sum("glake_probe_memory_bytes", ""),
            resident,
            reads: sum("glake_block_device_duration_seconds_count", "operation=\"read\""),
            read_bytes: sum("glake_block_io_bytes_total", "operation=\"read\""),
            dropped: sum("glake_events_dropped_total", ""),
        })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}
