//! Ctrl-C and SIGTERM as a flag: the loop ends at its next turn and still prints its summary.

use crate::error::{Error, Kind, Result};
use std::sync::{
    Arc,
    atomic::{AtomicI32, Ordering},
};

/// The newest signal that asked us to end; 0 for none.
#[derive(Debug, Clone)]
pub(super) struct Asked(Arc<AtomicI32>);

impl Asked {
    /// Catches SIGINT and SIGTERM from now on. A child started later has them as usual: handlers end at exec.
    ///
    /// # Errors
    /// When the handlers cannot be put in place.
    pub(super) fn catch() -> Result<Asked> {
        let asked = Asked(Arc::new(AtomicI32::new(0)));
        let told = Arc::clone(&asked.0);
        let failed = |e: std::io::Error| Error::new(Kind::Io, "catching SIGINT and SIGTERM").because(e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (ready, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || runtime.block_on(listen(&told, &ready)));
        match wait.recv() {
            Ok(Ok(())) => Ok(asked),
            Ok(Err(e)) => Err(failed(e)),
            Err(_) => Err(Error::new(Kind::Io, "the thread that catches signals ended")),
        }
    }

    /// The signal that came, once: asking again gives `None` until the next.
    pub(super) fn take(&self) -> Option<i32> {
        Some(self.0.swap(0, Ordering::SeqCst)).filter(|s| *s != 0)
    }
}

async fn listen(told: &AtomicI32, ready: &std::sync::mpsc::Sender<std::io::Result<()>>) {
    use tokio::signal::unix::{SignalKind, signal};
    let both = signal(SignalKind::interrupt()).and_then(|i| Ok((i, signal(SignalKind::terminate())?)));
    let (mut interrupt, mut terminate) = match both {
        Ok(both) => both,
        Err(e) => {
            let _ = ready.send(Err(e));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
        };
        told.store(signal.as_raw_value(), Ordering::SeqCst);
    }
}
