//! The agent's log: lines on stderr, with the priority that journald understands when it listens (sd-daemon(3)).

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::Write;

struct Stderr {
    journal: bool,
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries below us log their own affairs; ours are what an operator needs.
        metadata.target().starts_with("glake") || metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (priority, word) = match record.level() {
            Level::Error => ("<3>", "error"),
            Level::Warn => ("<4>", "warning"),
            Level::Info => ("<6>", "info"),
            Level::Debug | Level::Trace => ("<7>", "debug"),
        };
        let mut stderr = std::io::stderr().lock();
        // Nobody can be told that the log cannot be written.
        let _ = if self.journal {
            writeln!(stderr, "{priority}{}", record.args())
        } else {
            writeln!(stderr, "glake: {word}: {}", record.args())
        };
    }

    fn flush(&self) {}
}

/// Starts the log. A second call changes the level only.
pub fn start(level: LevelFilter) {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let _ = log::set_boxed_logger(Box::new(Stderr { journal }));
    log::set_max_level(level);
}
