//! A program on a pseudo-terminal, and what a person would see there.

use anyhow::{Context, Result, bail};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Longer than anything waits; a test that gets there has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// A program and its terminal.
pub struct Pty {
    master: File,
    /// Kept open, so that the terminal outlives the program and can be asked how it was left.
    slave: File,
    child: Child,
    seen: Arc<Mutex<Seen>>,
}

struct Seen {
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

impl Pty {
    /// Starts `program` on a terminal of this size, as its session's own terminal.
    pub fn start(
        program: &std::path::Path,
        args: &[&str],
        env: &[(&str, &str)],
        (rows, cols): (u16, u16),
    ) -> Result<Pty> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?.into_string()?;
        let slave = OpenOptions::new().read(true).write(true).open(&name)?;
        tcsetwinsize(&slave, size(rows, cols))?;
        let end = || slave.try_clone().map(Stdio::from);
        // util-linux's setsid makes the terminal the controlling one, so that a resize reaches the program.
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(program)
            .args(args)
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color")
            .envs(env.iter().copied())
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?)
            .spawn()
            .context("setsid of util-linux")?;
        let seen =
            Arc::new(Mutex::new(Seen { parser: vt100::Parser::new(rows, cols, 0), bytes: Vec::new() }));
        let master = File::from(master);
        let (mut reader, into) = (master.try_clone()?, Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if let Ok(mut seen) = into.lock() {
                    seen.parser.process(&buffer[..n]);
                    seen.bytes.extend(&buffer[..n]);
                }
            }
        });
        Ok(Pty { master, slave, child, seen })
    }

    /// Types.
    pub fn keys(&mut self, keys: &str) -> Result<()> {
        Ok(self.master.write_all(keys.as_bytes())?)
    }

    /// Changes the terminal's size, as dragging a window does.
    pub fn resize(&mut self, rows: u16, cols: u16) -> Result<()> {
        if let Ok(mut seen) = self.seen.lock() {
            seen.parser.screen_mut().set_size(rows, cols);
        }
        Ok(tcsetwinsize(&self.slave, size(rows, cols))?)
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        self.seen.lock().map(|seen| seen.parser.screen().contents()).unwrap_or_default()
    }

    /// Every byte that came.
    pub fn bytes(&self) -> Vec<u8> {
        self.seen.lock().map(|seen| seen.bytes.clone()).unwrap_or_default()
    }

    /// Waits until the screen holds what is wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            let screen = self.screen();
            if wanted(&screen) {
                return Ok(screen);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("never came: {what}; the screen is\n{}", self.screen())
    }

    /// Waits until the screen holds a text.
    pub fn until_text(&self, text: &str) -> Result<String> {
        self.until(text, |screen| screen.contains(text))
    }

    /// The program's process id.
    pub fn pid(&self) -> Result<rustix::process::Pid> {
        rustix::process::Pid::from_raw(i32::try_from(self.child.id())?).context("a pid is not 0")
    }

    /// Waits for the program to end.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("it does not end; the screen is\n{}", self.screen())
    }

    /// Whether the terminal is as a shell needs it: lines, echo, the main screen, a cursor.
    pub fn is_restored(&self) -> Result<bool> {
        let modes = tcgetattr(&self.slave)?.local_modes;
        // The last bytes may still be on their way.
        let main_screen = |seen: &Seen| {
            let screen = seen.parser.screen();
            !screen.alternate_screen() && !screen.hide_cursor()
        };
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end && !self.seen.lock().is_ok_and(|seen| main_screen(&seen)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let seen = self.seen.lock().is_ok_and(|seen| main_screen(&seen));
        Ok(seen && modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Ended already, if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(rows: u16, cols: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }
}
