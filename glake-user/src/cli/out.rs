//! Where results and talk go. Results are written through [`stdout`], which remembers that its reader left;
//! talk goes to stderr through [`say`] and is lost without harm when nobody listens.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

static READER_LEFT: AtomicBool = AtomicBool::new(false);

/// Standard output, buffered. The caller flushes it and passes errors on; `cli::main` turns those of a closed
/// pipe into success.
pub fn stdout() -> impl Write {
    io::BufWriter::new(Watched(io::stdout()))
}

/// Whether a write to standard output found its reader gone.
pub fn reader_left() -> bool {
    READER_LEFT.load(Ordering::Relaxed)
}

/// A line of talk on stderr.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether results on stdout may carry colours: a terminal, and neither NO_COLOR nor TERM=dumb.
pub fn colours() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    io::stdout().is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// The error of a failed write to standard output.
pub fn failed(cause: io::Error) -> crate::error::Error {
    crate::error::Error::os("writing to standard output", cause)
}

struct Watched<W>(W);

impl<W> Watched<W> {
    fn note<T>(answer: io::Result<T>) -> io::Result<T> {
        if answer.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            READER_LEFT.store(true, Ordering::Relaxed);
        }
        answer
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::note(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::note(self.0.flush())
    }
}
