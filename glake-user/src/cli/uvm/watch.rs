//! The loop: find the processes that opened UVM, read their queues, notice when they end.

use super::screen::{Blind, Named, Report};
use super::signals::Asked;
use super::windows::{Share, Turn, Windows};
use crate::error::{Error, Kind, Result};
use crate::events::uvm::entry::{Processor, kind};
use crate::events::uvm::queue::Queue;
use crate::events::uvm::release::{self, Interface, Version};
use crate::events::uvm::target::{Target, family};
use crate::host::{gpus, inventory::Inventory};
use crate::telemetry::uvm_tally::{Line, Tally};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Processes watched at once: each one pins its queue.
const MOST: usize = 32;

/// What to watch and how.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The process.
    pub(super) pid: i32,
    /// Its children too.
    pub(super) children: bool,
    /// Event types.
    pub(super) mask: u64,
    /// How much of the time; `None`: always.
    pub(super) share: Option<Share>,
    /// Entries of each queue.
    pub(super) entries: u32,
    /// How often lines are told.
    pub(super) interval: Duration,
    /// When to stop, if not at the end of the process.
    pub(super) limit: Option<Duration>,
}

/// What the loop tells while it runs.
pub(super) enum News<'a> {
    /// The process has not opened UVM yet.
    Waiting { pid: i32 },
    /// A queue is open.
    Attached { pid: i32, comm: &'a str, blind: Blind },
    /// Something could not be watched.
    Refused { pid: i32, error: &'a Error },
    /// One interval of one process. `on`: events were on for so much of it; `None`: all the time.
    Line {
        pid: i32,
        at: Duration,
        line: Line,
        dropped: u64,
        on: Option<Duration>,
        so_far: &'a dyn Fn() -> Report,
    },
}

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The process ended.
    Ended,
    /// The time limit came.
    Limit,
    /// A signal came.
    Signal(i32),
}

/// Runs until the process ends, the limit comes or a signal comes. `command`: the process is our own child, so a
/// signal is for it (passed on if it was SIGTERM) and we go on to its end.
///
/// # Errors
/// When `pid` cannot be watched at all. One child of it that cannot is only told as news.
pub(super) fn watch(
    wanted: &Wanted,
    command: bool,
    asked: &Asked,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<(Vec<Report>, Ending)> {
    let root = Target::new(wanted.pid)?;
    let mut watch = Watch::new(wanted, command);
    let mut waiting_told = false;
    loop {
        watch.wait(&root)?;
        watch.drain();
        watch.bury();
        watch.turn();
        if root.ended() {
            return Ok((watch.end(), Ending::Ended));
        }
        if watch.look_due() {
            match watch.look(tell) {
                // Without a driver interface nothing can be watched; a command goes on by itself.
                Err(e) if command => watch.refuse_all(e, tell),
                other => other?,
            }
        }
        if watch.nothing_yet() && !waiting_told && watch.started.elapsed() > Duration::from_millis(300) {
            waiting_told = true;
            tell(News::Waiting { pid: wanted.pid });
        }
        watch.lines(tell);
        if let Some(signal) = asked.take() {
            if !command {
                return Ok((watch.end(), Ending::Signal(signal)));
            }
            pass_on(signal, wanted.pid);
        }
        if wanted.limit.is_some_and(|l| watch.started.elapsed() >= l) {
            return Ok((watch.end(), Ending::Limit));
        }
    }
}

/// Ctrl-C reached the child by itself (same process group); SIGTERM came to us alone.
fn pass_on(signal: i32, pid: i32) {
    if signal == libc::SIGTERM
        && let Some(pid) = rustix::process::Pid::from_raw(pid)
    {
        // It may have ended just now: then there is nobody to tell.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// One process with an open queue.
struct Attached {
    target: Target,
    queue: Queue,
    tally: Tally,
    previous: Tally,
    report: Report,
    since: Instant,
    windows: Windows,
    /// Time that events had been on when the previous line was told.
    told: Duration,
}

impl Attached {
    /// What is known by now.
    fn so_far(&self) -> Report {
        let mut report = self.report.clone();
        report.gpus = names(&self.queue);
        report.dropped = kind::NAMES
            .iter()
            .map(|(name, n)| (*name, self.queue.dropped()[usize::from(*n)]))
            .filter(|(_, n)| *n > 0)
            .collect();
        report.undecoded = self.queue.undecoded();
        report.watched = self.since.elapsed();
        report.on = self.windows.sampled().then(|| self.windows.watched(report.watched));
        report.tally = self.tally.clone();
        report
    }

    /// Opens or closes a window, if it is time.
    fn turn(&mut self, mask: u64) {
        let Some(turn) = self.windows.turn(self.since.elapsed()) else { return };
        let done = match turn {
            Turn::On => self.queue.enable(mask),
            // Migrations of the window whose GPU time stamps are still on their way belong to it.
            Turn::Off => self.queue.flush().and_then(|()| self.queue.disable(mask)),
        };
        self.queue.drain(|entry| self.tally.add(&entry));
        self.report.complete &= done.is_ok();
        self.windows.turned(turn, self.since.elapsed());
    }
}

struct Watch<'a> {
    wanted: &'a Wanted,
    command: bool,
    driver: Option<(Version, Interface)>,
    attached: Vec<Attached>,
    done: Vec<Report>,
    /// Processes that will not be tried again.
    refused: Vec<i32>,
    /// When each process was last seen without an address space of UVM.
    unseen: Vec<(i32, Instant)>,
    started: Instant,
    last_look: Option<Instant>,
    last_line: Instant,
    gave_up: bool,
}

impl<'a> Watch<'a> {
    fn new(wanted: &'a Wanted, command: bool) -> Self {
        let now = Instant::now();
        Watch {
            wanted,
            command,
            driver: None,
            attached: Vec::new(),
            done: Vec::new(),
            refused: Vec::new(),
            unseen: Vec::new(),
            started: now,
            last_look: None,
            last_line: now,
            gave_up: false,
        }
    }

    fn nothing_yet(&self) -> bool {
        self.attached.is_empty() && self.done.is_empty() && !self.gave_up
    }

    /// Looking costs some system calls: often while nothing is attached, seldom after.
    fn look_every(&self) -> Duration {
        match (self.nothing_yet(), self.started.elapsed()) {
            (true, t) if t < Duration::from_secs(20) => Duration::from_millis(1),
            (true, _) => Duration::from_millis(20),
            (false, _) => Duration::from_millis(100),
        }
    }

    fn look_due(&self) -> bool {
        let more = self.nothing_yet() || self.wanted.children;
        more && !self.gave_up && self.last_look.is_none_or(|t| t.elapsed() >= self.look_every())
    }

    /// Sleeps until a queue fills, the process ends, or something else is due.
    fn wait(&self, root: &Target) -> Result<()> {
        let mut look = if self.nothing_yet() { self.look_every() } else { Duration::from_millis(50) };
        for a in &self.attached {
            let due = a.windows.due().map(|due| due.saturating_sub(a.since.elapsed()));
            look = due.map_or(look, |due| look.min(due));
        }
        let mut fds = vec![PollFd::new(root, PollFlags::IN)];
        for a in &self.attached {
            fds.push(PollFd::from_borrowed_fd(a.queue.as_fd(), PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(a.target.as_fd(), PollFlags::IN));
        }
        let look = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(look.subsec_nanos()) };
        match poll(&mut fds, Some(&look)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("waiting for events", e.into())),
        }
    }

    /// Opens and closes the windows that are due.
    fn turn(&mut self) {
        for a in &mut self.attached {
            a.turn(self.wanted.mask);
        }
    }

    fn drain(&mut self) {
        for a in &mut self.attached {
            a.queue.drain(|entry| a.tally.add(&entry));
        }
    }

    /// Closes the queues of processes that ended: an open one keeps the dead process's managed memory.
    fn bury(&mut self) {
        let (dead, alive): (Vec<_>, Vec<_>) = self.attached.drain(..).partition(|a| a.target.ended());
        self.attached = alive;
        self.done.extend(dead.into_iter().map(|a| finish(a, true)));
    }

    fn end(self) -> Vec<Report> {
        let mut done = self.done;
        for a in self.attached {
            let ended = a.target.ended();
            done.push(finish(a, ended));
        }
        done
    }

    fn refuse_all(&mut self, error: Error, tell: &mut dyn FnMut(News<'_>)) {
        self.gave_up = true;
        tell(News::Refused { pid: self.wanted.pid, error: &error });
    }

    fn look(&mut self, tell: &mut dyn FnMut(News<'_>)) -> Result<()> {
        self.last_look = Some(Instant::now());
        let pids = if self.wanted.children { family(self.wanted.pid) } else { vec![self.wanted.pid] };
        for pid in pids {
            let known = self.attached.iter().any(|a| a.target.pid() == pid) || self.refused.contains(&pid);
            if known || self.attached.len() >= MOST || self.done.iter().any(|r| r.pid == pid) {
                continue;
            }
            self.try_one(pid, tell)?;
        }
        Ok(())
    }

    fn try_one(&mut self, pid: i32, tell: &mut dyn FnMut(News<'_>)) -> Result<()> {
        let only = pid == self.wanted.pid && !self.wanted.children;
        match self.attach(pid) {
            Ok(Some(attached)) => {
                let (comm, blind) = (attached.report.comm.clone(), attached.report.blind);
                self.attached.push(attached);
                tell(News::Attached { pid, comm: &comm, blind });
                Ok(())
            }
            Ok(None) => {
                self.unseen.retain(|(p, _)| *p != pid);
                self.unseen.push((pid, Instant::now()));
                Ok(())
            }
            // A child that came and went between two looks.
            Err(e) if e.kind() == Kind::Missing && !only && self.driver.is_some() => Ok(()),
            Err(e) if only || matches!(e.kind(), Kind::Unsupported | Kind::Missing) => Err(e),
            Err(e) => {
                self.refused.push(pid);
                tell(News::Refused { pid, error: &e });
                Ok(())
            }
        }
    }

    fn attach(&mut self, pid: i32) -> Result<Option<Attached>> {
        let target = match Target::new(pid) {
            Err(e) if e.kind() == Kind::Missing && self.wanted.children => return Ok(None),
            other => other?,
        };
        match target.uvm_descriptors() {
            Ok(found) if found.is_empty() => return Ok(None),
            // A child between fork and exec, or one that just ended.
            Err(e) if e.kind() == Kind::Missing && self.wanted.children => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e),
        }
        // Only now: before the first CUDA program the module may not even be loaded.
        if self.driver.is_none() {
            let version = release::loaded(Path::new("/"))?;
            let interface = release::interface(&version)?;
            self.driver = Some((version, interface));
        }
        let Some((version, interface)) = &self.driver else { return Ok(None) };
        let Some(queue) = target.attach(version, *interface, self.wanted.entries)? else { return Ok(None) };
        queue.wake_at(self.wanted.entries / 4)?;
        queue.enable(self.wanted.mask)?;
        let now = Instant::now();
        let seen = self.unseen.iter().find(|(p, _)| *p == pid).map(|(_, at)| now - *at);
        let blind = Blind { before: now - self.started, late_by: seen, from_start: self.command };
        let report = Report {
            pid,
            comm: comm(pid),
            driver: version.to_string(),
            layout: interface.layout,
            mask: self.wanted.mask,
            blind,
            complete: true,
            ..Report::default()
        };
        let (tally, previous) = (Tally::default(), Tally::default());
        let (windows, told) = (Windows::new(self.wanted.share), Duration::ZERO);
        Ok(Some(Attached { target, queue, tally, previous, report, since: now, windows, told }))
    }

    fn lines(&mut self, tell: &mut dyn FnMut(News<'_>)) {
        if self.last_line.elapsed() < self.wanted.interval {
            return;
        }
        self.last_line = Instant::now();
        let at = self.started.elapsed();
        for a in &mut self.attached {
            let line = a.tally.since(&a.previous);
            a.previous = a.tally.clone();
            let dropped = a.queue.dropped().iter().sum();
            let watched = a.windows.watched(a.since.elapsed());
            let on = a.windows.sampled().then(|| watched.saturating_sub(a.told));
            a.told = watched;
            let a = &*a;
            tell(News::Line { pid: a.target.pid(), at, line, dropped, on, so_far: &|| a.so_far() });
        }
    }
}

/// The last look at a queue: what is still on its way is asked for, then it is closed.
fn finish(mut a: Attached, ended: bool) -> Report {
    // A refusal only means that migrations without GPU time stamps are missing; the driver delivers in order.
    let flushed = a.queue.flush().is_ok();
    a.queue.drain(|entry| a.tally.add(&entry));
    let off = a.queue.disable(a.report.mask).is_ok();
    a.queue.drain(|entry| a.tally.add(&entry));
    a.report.complete &= flushed && off;
    a.report.ended = ended;
    a.so_far()
}

fn names(queue: &Queue) -> Vec<Named> {
    let inventory = Inventory::read(Path::new("/"));
    let table = queue.gpus().unwrap_or_default();
    table
        .into_iter()
        .map(|(index, uuid)| {
            let found = gpus::with_uuid(&inventory.gpus, &uuid);
            Named {
                processor: Processor(index),
                index: found.map(|(i, _)| i),
                pci: found.map(|(_, g)| g.pci.clone()),
                model: found.and_then(|(_, g)| g.model.clone()),
                uuid,
            }
        })
        .collect()
}

fn comm(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "unknown".to_owned(), |c| c.trim_end().to_owned())
}
