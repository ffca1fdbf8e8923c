//! The screen of `glake play` and `glake watch`, driven through a pseudo-terminal as a person would.

use anyhow::Result;
use glake_tests::{binary, pty::Pty, readings};
use rustix::process::{Signal, kill_process};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

const SIZE: (u16, u16) = (24, 80);

/// A recording, played to its end on a terminal.
fn played(env: &[(&str, &str)]) -> Result<(Pty, tempfile::TempDir)> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("test.glrec");
    std::fs::write(&file, readings::recording(1..90)?)?;
    let file = file.display().to_string();
    let pty = Pty::start(&binary::path(), &["play", &file, "--speed", "max"], env, SIZE)?;
    pty.until_text("END of the recording")?;
    Ok((pty, dir))
}

#[test]
fn a_recording_is_shown_explored_and_left() -> Result<()> {
    let (mut pty, _dir) = played(&[])?;
    let screen = pty.until_text("backup.service")?;
    assert!(screen.contains("node-of-the-test") && screen.contains("4.10 MB/s"), "{screen}");
    pty.keys("\t")?;
    pty.until_text("devices 2/5")?;
    pty.keys("5")?;
    pty.until_text("block:block_rq_complete")?;
    pty.keys("1?")?;
    pty.until_text("A dash is unknown, never zero")?;
    pty.keys("x/zzz")?;
    pty.until_text("none of 1 has \"zzz\" in it")?;
    pty.keys("\x1b")?;
    pty.until("all rows again", |s| s.contains(" vdz ") && !s.contains("zzz"))?;
    pty.keys("q")?;
    assert!(pty.ended()?.success());
    assert!(pty.is_restored()?);
    Ok(())
}

#[test]
fn every_size_is_survived() -> Result<()> {
    let (mut pty, _dir) = played(&[])?;
    for (rows, cols) in [(10, 60), (3, 20), (1, 1), (50, 200)] {
        pty.resize(rows, cols)?;
    }
    pty.resize(12, 70)?;
    pty.until("a screen of 12 lines", |s| {
        s.contains("q quit") && s.lines().count() <= 12 && s.contains(" vdz ")
    })?;
    pty.keys("q")?;
    assert!(pty.ended()?.success());
    Ok(())
}

#[test]
fn queries_that_were_shown_are_printed_for_the_shell() -> Result<()> {
    let (mut pty, _dir) = played(&[])?;
    pty.keys("je")?;
    pty.until_text("PromQL of this row")?;
    pty.keys("q")?;
    assert!(pty.ended()?.success());
    pty.until("the query on the main screen", |s| {
        s.replace('\n', "").contains("glake_block_device_duration_seconds_bucket{device=\"vdz\"}[5m]")
    })?;
    assert!(pty.is_restored()?);
    Ok(())
}

#[test]
fn a_signal_gives_the_terminal_back() -> Result<()> {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (mut pty, _dir) = played(&[])?;
        kill_process(pty.pid()?, signal)?;
        assert!(pty.ended()?.success(), "{signal:?}");
        assert!(pty.is_restored()?, "{signal:?}");
    }
    Ok(())
}

#[test]
fn ctrl_c_leaves() -> Result<()> {
    let (mut pty, _dir) = played(&[])?;
    pty.keys("\x03")?;
    assert!(pty.ended()?.success());
    assert!(pty.is_restored()?);
    Ok(())
}

#[test]
fn no_color_means_no_colour() -> Result<()> {
    let coloured = |pty: &Pty| {
        let bytes = String::from_utf8_lossy(&pty.bytes()).into_owned();
        ["38;5;", "[31m", "[32m", "[33m", "[36m"].iter().any(|code| bytes.contains(code))
    };
    let (plain, _dir) = played(&[("NO_COLOR", "1")])?;
    assert!(!coloured(&plain));
    let (with, _dir) = played(&[])?;
    assert!(coloured(&with));
    Ok(())
}

/// Serves a state that moves on with every question, at one address, until it is stopped.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(listener: TcpListener, second: Arc<AtomicU64>) -> Result<Server> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while let Ok((mut peer, _)) = listener.accept() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let mut request = [0; 2048];
                let n = peer.read(&mut request).unwrap_or(0);
                assert!(request[..n].starts_with(b"GET /api/v1/state HTTP/1.1\r\n"));
                let now = second.fetch_add(1, Ordering::SeqCst);
                let body = serde_json::to_string(&readings::state(now)).unwrap_or_default();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = peer.write_all(head.as_bytes()).and_then(|()| peer.write_all(body.as_bytes()));
            }
        });
        Ok(Server { stop, thread: Some(thread) })
    }

    fn stop(mut self, address: SocketAddr) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept.
        drop(std::net::TcpStream::connect(address));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn an_agent_that_goes_is_stale_and_one_that_comes_back_is_live() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let second = Arc::new(AtomicU64::new(2));
    let server = Server::start(listener, Arc::clone(&second))?;
    let mut pty = Pty::start(&binary::path(), &["watch", "--addr", &address.to_string()], &[], SIZE)?;
    pty.until_text("backup.service")?;
    server.stop(address);
    let screen = pty.until_text("STALE since")?;
    assert!(screen.contains("no agent answers on") && screen.contains("backup.service"), "{screen}");
    let server = Server::start(TcpListener::bind(address)?, second)?;
    pty.until("live again", |s| s.contains("backup.service") && !s.contains("STALE"))?;
    pty.keys("r")?;
    pty.until_text("sudo glake record FILE")?;
    pty.keys("q")?;
    assert!(pty.ended()?.success());
    assert!(pty.is_restored()?);
    server.stop(address);
    Ok(())
}
