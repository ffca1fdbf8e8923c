//! The real binary: exit codes, results on stdout, talk on stderr, what it refuses and how it says so.

use anyhow::Result;
use glake_tests::{
    binary::{self, run},
    readings,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
};

fn file(dir: &Path, name: &str, bytes: &[u8]) -> Result<String> {
    let path = dir.join(name);
    std::fs::write(&path, bytes)?;
    Ok(path.display().to_string())
}

/// Runs `glake` through a shell line in which `$GLAKE` is the binary.
fn shell(line: &str) -> Result<binary::Ran> {
    let out = Command::new("sh").arg("-c").arg(line).env("GLAKE", binary::path()).output()?;
    Ok(binary::Ran {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

/// Tests that drop privileges must have some to drop.
fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// As a user without any capability.
const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all";

#[test]
fn the_version_names_commit_target_and_abi() {
    let ran = run(&["--version"], "");
    assert_eq!(ran.code, 0);
    for part in ["glake 0.", "commit ", "target ", "eBPF ABI "] {
        assert!(ran.stdout.contains(part), "{}", ran.stdout);
    }
}

#[test]
fn a_misspelt_command_or_option_is_answered_with_the_right_one() {
    for (args, right) in
        [(&["wacth"][..], "watch"), (&["docter"], "doctor"), (&["play", "--jsno", "x"], "--json")]
    {
        let ran = run(args, "");
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}");
        assert!(ran.stderr.contains(right), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn help_is_a_result_and_shows_examples() {
    for command in ["watch", "record", "play", "doctor"] {
        let ran = run(&[command, "--help"], "");
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert!(ran.stdout.contains("Examples:"), "{}", ran.stdout);
    }
}

#[test]
fn no_command_is_wrong_usage() {
    let ran = run(&[], "");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("Usage: glake"), "{}", ran.stderr);
}

#[test]
fn what_is_played_is_what_was_live() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let recording = file(dir.path(), "r", &readings::recording(1..200)?)?;
    let ran = run(&["play", &recording, "--json"], "");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let live: Vec<String> =
        (2..200).map(|s| serde_json::to_string(&readings::state(s))).collect::<Result<_, _>>()?;
    let played: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(played.len(), 199, "the first has no interval");
    assert_eq!(played[1..], live);
    Ok(())
}

#[test]
fn playing_twice_is_the_same() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let recording = file(dir.path(), "r", &readings::recording(1..50)?)?;
    let once = run(&["play", &recording], "").stdout;
    assert!(once.contains("vdz") && once.contains("4.10 MB/s"), "{once}");
    assert_eq!(once, run(&["play", &recording], "").stdout);
    Ok(())
}

#[test]
fn a_truncated_recording_gives_what_it_has_and_a_warning() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bytes = readings::recording(1..200)?;
    let recording = file(dir.path(), "r", &bytes[..bytes.len() - 7])?;
    let ran = run(&["play", &recording, "--json"], "");
    assert_eq!(ran.code, 0);
    assert!(ran.stdout.lines().count() >= 194, "{}", ran.stdout.lines().count());
    assert!(ran.stderr.contains("ends within a block"), "{}", ran.stderr);
    Ok(())
}

#[test]
fn a_recording_with_any_byte_changed_is_played_or_refused_and_never_a_crash() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bytes = readings::recording(1..100)?;
    for step in 0..48 {
        let mut broken = bytes.clone();
        // Header, first block, and then all over the file.
        let at = if step < 24 { step * 5 } else { step * 7919 } % broken.len();
        broken[at] ^= 1 << (step % 8);
        let recording = file(dir.path(), "r", &broken)?;
        let ran = run(&["play", &recording, "--json"], "");
        assert!([0, 1].contains(&ran.code), "byte {at}: {} {}", ran.code, ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "byte {at}: {}", ran.stderr);
        let whole = ran.code == 0 && ran.stderr.is_empty();
        assert!(!whole || ran.stdout.lines().count() == 99, "byte {at}: something was lost without a word");
        for line in ran.stdout.lines() {
            serde_json::from_str::<serde_json::Value>(line)?;
        }
    }
    Ok(())
}

#[test]
fn a_place_begins_there() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let recording = file(dir.path(), "r", &readings::recording(1..200)?)?;
    let ran = run(&["play", &recording, "--json", "--at", "100s"], "");
    let first: serde_json::Value = serde_json::from_str(ran.stdout.lines().next().unwrap_or_default())?;
    assert_eq!(first["at"]["monotonic_ns"], readings::sample(101).at.monotonic_ns);
    let after = run(&["play", &recording, "--at", "1h"], "");
    assert_eq!(after.code, 2);
    assert!(after.stderr.contains("after the end of the recording"), "{}", after.stderr);
    Ok(())
}

#[test]
fn what_is_no_recording_is_refused_by_name() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let text = file(dir.path(), "notes.txt", b"not a recording")?;
    let ran = run(&["play", &text], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("notes.txt") && ran.stderr.contains("glake record"), "{}", ran.stderr);
    let missing = run(&["play", "/no/such/file"], "");
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("/no/such/file"), "{}", missing.stderr);
    Ok(())
}

#[test]
fn a_recording_can_come_through_a_pipe() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let recording = file(dir.path(), "r", &readings::recording(1..5)?)?;
    let ran = shell(&format!("cat {recording} | $GLAKE play - --json"))?;
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 4), "{}", ran.stderr);
    Ok(())
}

#[test]
fn a_reader_that_leaves_is_success() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let recording = file(dir.path(), "r", &readings::recording(1..2000)?)?;
    let mut child = Command::new(binary::path())
        .args(["play", &recording, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut first = String::new();
    let mut stdout = BufReader::new(child.stdout.take().ok_or_else(|| anyhow::anyhow!("no stdout"))?);
    stdout.read_line(&mut first)?;
    drop(stdout);
    let mut talk = String::new();
    child.stderr.take().ok_or_else(|| anyhow::anyhow!("no stderr"))?.read_to_string(&mut talk)?;
    assert!(child.wait()?.success(), "{talk}");
    assert_eq!(talk, "");
    Ok(())
}

#[test]
fn completions_and_manual_pages_are_made() -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell], "");
        assert!(ran.code == 0 && ran.stdout.contains("glake") && ran.stdout.contains("watch"), "{shell}");
    }
    let dir = tempfile::tempdir()?;
    let ran = run(&["man", &dir.path().display().to_string()], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    let page = std::fs::read_to_string(dir.path().join("glake-record.1"))?;
    assert!(page.contains(r"\-\-redact"), "{page}");
    Ok(())
}

#[test]
fn without_privileges_record_says_what_it_needs_and_leaves_no_file() -> Result<()> {
    if !root() {
        eprintln!("skipped: needs root, whose privileges are dropped");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let path = dir.path().join("r").display().to_string();
    let ran = shell(&format!("{NOBODY} $GLAKE record {path} --for 1s"))?;
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(!Path::new(&path).exists());
    let privileges = ran.stderr.contains("CAP_BPF") && ran.stderr.contains("sudo");
    assert!(privileges || ran.stderr.contains("built without its eBPF programs"), "{}", ran.stderr);
    Ok(())
}

#[test]
fn without_agent_and_privileges_watch_says_what_to_do() -> Result<()> {
    if !root() {
        eprintln!("skipped: needs root, whose privileges are dropped");
        return Ok(());
    }
    if std::net::TcpStream::connect("127.0.0.1:9517").is_ok() {
        eprintln!("skipped: an agent of somebody's answers on port 9517 here");
        return Ok(());
    }
    let ran = shell(&format!("{NOBODY} $GLAKE watch --once"))?;
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("no agent answers on 127.0.0.1:9517"), "{}", ran.stderr);
    assert!(ran.stderr.contains("sudo glake run"), "{}", ran.stderr);
    let asked = run(&["watch", "--addr", "127.0.0.1:1", "--once"], "");
    assert_eq!(asked.code, 1);
    assert!(asked.stderr.contains("no agent answers on 127.0.0.1:1"), "{}", asked.stderr);
    let nowhere = run(&["watch", "--addr", "nowhere", "--once"], "");
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.stderr.contains("give HOST:PORT"), "{}", nowhere.stderr);
    Ok(())
}

#[test]
fn one_interval_of_an_agent_is_a_few_lines() -> Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let server = std::thread::spawn(move || -> Result<()> {
        let (mut peer, _) = listener.accept()?;
        let _ = peer.read(&mut [0; 2048])?;
        let body = serde_json::to_string(&readings::state(2))?;
        write!(peer, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
        Ok(())
    });
    let ran = run(&["watch", "--addr", &address, "--once"], "");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.stdout);
    assert!(!ran.stdout.contains('\x1b'));
    server.join().map_err(|_| anyhow::anyhow!("the server failed"))?
}
