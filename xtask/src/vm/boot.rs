//! One run of a guest: build its initramfs, start QEMU, pass its output on, wait with a deadline, fetch its results.

use super::guest::{self, File};
use super::kernel::Kernel;
use super::machine::Machine;
use super::qemu::Qemu;
use crate::{cmd, files};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What QEMU 10.0 prints when its own IOTLB code fails, about once in 14 runs on several threads: not the guest's doing.
const EMULATOR_FAULT: &str = "iotlb_to_section: Assertion";

/// A guest and its job.
pub(crate) struct Job<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) machine: &'a Machine,
    /// More kernel arguments.
    pub(crate) cmdline: &'a str,
    pub(crate) files: &'a [File],
    pub(crate) modules: &'a [String],
    /// A shell script.
    pub(crate) script: &'a str,
    /// Where the guest's /out goes, with `console.txt`. `None`: nowhere.
    pub(crate) out: Option<&'a Path>,
    /// From the start of QEMU.
    pub(crate) deadline: Duration,
}

impl Job<'_> {
    /// Runs it and returns the script's exit status.
    pub(crate) fn run(&self, cache: &Path) -> Result<i32> {
        let folder = files::fresh_folder(&std::env::temp_dir(), "glake-lab")?;
        let done = self.run_in(cache, &folder);
        let removed = fs::remove_dir_all(&folder);
        let status = done?;
        removed.with_context(|| format!("removing {}", folder.display()))?;
        Ok(status)
    }

    fn run_in(&self, cache: &Path, folder: &Path) -> Result<i32> {
        let qemu = Qemu::get(cache)?;
        let initramfs = folder.join("initramfs");
        let contents = guest::Contents {
            kernel: self.kernel,
            files: self.files,
            modules: self.modules,
            script: self.script,
            nvmes: self.machine.controllers(),
        };
        guest::build(cache, &contents, &initramfs)?;
        let ended = self.once(&qemu, folder, &initramfs)?;
        if !ended.emulator_fault {
            return self.result(folder, ended.in_time);
        }
        eprintln!("xtask: QEMU's own IOTLB assertion failed; trying once more");
        let ended = self.once(&qemu, folder, &initramfs)?;
        self.result(folder, ended.in_time)
    }

    fn once(&self, qemu: &Qemu, folder: &Path, initramfs: &Path) -> Result<Ended> {
        let path = |name: &str| folder.join(name).display().to_string();
        let mut command = qemu.command();
        command.args(self.machine.arguments(folder)?);
        command.arg("-kernel").arg(self.kernel.image()?).arg("-initrd").arg(initramfs);
        // no_timer_check: on a loaded host the boot-time check of the timer misfires and the guest panics.
        let iommu = if self.machine.iommu { "intel_iommu=on iommu.strict=1 " } else { "" };
        command.arg("-append").arg(format!(
            "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check {iommu}{}",
            self.cmdline
        ));
        let ports = [
            ("console", path("console.txt")),
            ("out", "/dev/stdout".into()),
            ("err", "/dev/stderr".into()),
            ("results", path("results.tar")),
        ];
        for (name, to) in ports {
            command.args([
                "-chardev",
                &format!("file,id={name},path={to}"),
                "-serial",
                &format!("chardev:{name}"),
            ]);
        }
        watch(&mut command, self.deadline)
    }

    /// The exit status that the guest left behind, or why there is none.
    fn result(&self, folder: &Path, in_time: bool) -> Result<i32> {
        let out = folder.join("out");
        fs::create_dir_all(&out)?;
        // A guest that was stopped half-way leaves half a tar, or none: what can be read is read.
        let _ = Command::new("tar")
            .arg("-xf")
            .arg(folder.join("results.tar"))
            .arg("-C")
            .arg(&out)
            .stderr(Stdio::null())
            .status();
        fs::copy(folder.join("console.txt"), out.join("console.txt"))?;
        let status = fs::read_to_string(out.join(".status")).ok().and_then(|s| s.trim().parse().ok());
        if let Some(to) = self.out {
            fs::create_dir_all(to)?;
            cmd::output(Command::new("cp").arg("-rT").arg(&out).arg(to))?;
        }
        match status {
            Some(status) => Ok(status),
            None => bail!(
                "the guest {} and left no exit status. The end of its console:\n{}",
                if in_time {
                    "stopped".to_owned()
                } else {
                    format!("did not end within {} s", self.deadline.as_secs())
                },
                tail(&folder.join("console.txt"), 30)
            ),
        }
    }
}

struct Ended {
    in_time: bool,
    emulator_fault: bool,
}

/// A child that is killed and reaped when this value goes.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts QEMU, copies its output to ours, and waits until it ends or the deadline has passed.
fn watch(command: &mut Command, deadline: Duration) -> Result<Ended> {
    let start = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting QEMU")?;
    let mut child = Guarded(child);
    let stdout = child.0.stdout.take().context("QEMU's stdout")?;
    let stderr = child.0.stderr.take().context("QEMU's stderr")?;
    std::thread::scope(|scope| {
        let out = scope.spawn(|| copy(stdout));
        let err = scope.spawn(|| copy_lines(stderr));
        let in_time = loop {
            if child.0.try_wait().context("waiting for QEMU")?.is_some() {
                break true;
            }
            if start.elapsed() > deadline {
                break false;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        drop(child);
        let _ = out.join();
        let emulator_fault = err.join().unwrap_or(false);
        Ok(Ended { in_time, emulator_fault })
    })
}

/// Passes bytes on as they come. When our stdout is closed the guest still runs to its end.
fn copy(mut from: impl Read) {
    let mut buffer = [0; 8192];
    let mut open = true;
    while let Ok(n) = from.read(&mut buffer) {
        if n == 0 {
            break;
        }
        let mut to = std::io::stdout().lock();
        open = open && to.write_all(&buffer[..n]).and_then(|()| to.flush()).is_ok();
    }
}

/// Passes lines on; true if one of them is QEMU's own failure.
fn copy_lines(from: impl Read) -> bool {
    let mut fault = false;
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        fault |= String::from_utf8_lossy(&line).contains(EMULATOR_FAULT);
        let _ = std::io::stderr().lock().write_all(&line);
        line.clear();
    }
    fault
}

fn tail(path: &PathBuf, lines: usize) -> String {
    let text = fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
