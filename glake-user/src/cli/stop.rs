//! Being asked to stop: SIGINT, SIGTERM, SIGHUP end a command in order, so that files are closed and the terminal is
//! given back.

use super::screen::Update;
use crate::error::{Error, Result};
use std::{sync::mpsc::Sender, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A runtime for one thread.
///
/// # Errors
/// When the process has no descriptors left.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|e| Error::os("starting an event loop", e))
}

/// The signals that ask us to stop.
pub(super) struct Signals([Signal; 3]);

impl Signals {
    /// From now on they no longer kill the process.
    ///
    /// # Errors
    /// When a handler cannot be set.
    pub(super) fn new() -> Result<Signals> {
        let on = |kind| signal(kind).map_err(|e| Error::os("catching signals", e));
        Ok(Signals([on(SignalKind::interrupt())?, on(SignalKind::terminate())?, on(SignalKind::hangup())?]))
    }

    /// Waits for a signal, at most `time`; whether one came.
    pub(super) async fn within(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.any()).await.is_ok()
    }

    /// Waits for a signal.
    pub(super) async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Tells the screen when a signal comes. Without a runtime the signals keep their own way of ending the process.
pub(super) fn watch(updates: Sender<Update>) {
    std::thread::spawn(move || {
        let Ok(runtime) = runtime() else { return };
        runtime.block_on(async {
            if let Ok(mut signals) = Signals::new() {
                signals.any().await;
                let _ = updates.send(Update::Quit);
            }
        });
    });
}
