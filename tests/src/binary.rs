//! The `glake` binary under test.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a run of the binary gave.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Exit code; -1 where a signal ended it.
    pub code: i32,
    /// Results.
    pub stdout: String,
    /// Talk.
    pub stderr: String,
}

impl Ran {
    /// Standard output as JSON.
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(e) => panic!("{e}: {}\n{}", self.stdout, self.stderr),
        }
    }
}

/// `GLAKE_BIN`, as `cargo xtask test` sets it, or the binary of the development build.
pub fn path() -> PathBuf {
    std::env::var_os("GLAKE_BIN").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/debug/glake"),
        PathBuf::from,
    )
}

/// A shared library of the workspace, built beside the binary.
pub fn library(name: &str) -> PathBuf {
    path().with_file_name(name)
}

/// A file under `tests/data`.
pub fn data(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data").join(name).display().to_string()
}

/// Runs `glake` with arguments and standard input, to its end.
///
/// # Panics
/// Where the binary cannot be started: build it first.
pub fn run(args: &[&str], stdin: &str) -> Ran {
    let program = path();
    let mut child = Command::new(&program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}; build it with `cargo build -p glake`", program.display()));
    let mut input = child.stdin.take();
    if let Some(pipe) = input.as_mut() {
        // A program that does not read its input has closed the pipe: no failure.
        let _ = pipe.write_all(stdin.as_bytes());
    }
    drop(input);
    match child.wait_with_output() {
        Ok(out) => Ran {
            code: out.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        },
        Err(e) => panic!("waiting for {}: {e}", program.display()),
    }
}
