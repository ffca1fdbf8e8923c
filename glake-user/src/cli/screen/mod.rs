//! The full-screen view of `glake watch` and `glake play`: states come in by a channel, keys from the terminal.

mod draw;
mod health;
mod heat;
mod promql;
mod sections;
mod table;
mod tone;
mod ui;

use super::{out, view};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::telemetry::state::State;
use crossterm::event::{self, Event};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;
use ui::{Act, Link, Ui};

/// What a source of states tells the screen.
#[derive(Debug)]
pub(super) enum Update {
    /// The newest interval.
    State(Box<State>),
    /// States do not come any more; the source goes on trying.
    Lost(String),
    /// Something to tell.
    Note(String),
    /// The file that is recorded to from now on, or none.
    Recording(Option<String>),
    /// The recording has ended; the last state stays.
    Ended,
    /// The process was asked to stop.
    Quit,
    /// Nothing will ever come.
    Failed(Error),
}

/// What the screen asks of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// Begin or end a recording.
    ToggleRecording,
    /// Hold or go on, where the source can be held.
    Pause(bool),
}

/// A source of states.
pub(super) struct Feed {
    /// What the header says about it: `agent 127.0.0.1:9464`.
    pub(super) source: String,
    pub(super) updates: Receiver<Update>,
    pub(super) requests: Sender<Request>,
    /// To wait for, where something must be closed in order.
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Feed {
    /// Tells the source that the screen is gone, and waits until it has closed what it holds.
    pub(super) fn close(self) {
        drop((self.requests, self.updates));
        if let Some(thread) = self.thread {
            // A panic there has told about itself already.
            let _ = thread.join();
        }
    }
}

/// Shows the screen until somebody quits. Answers the queries that were exported.
///
/// # Errors
/// When the terminal cannot be used, or the source fails for good. The terminal is restored either way, also when a
/// panic passes by.
pub(super) fn show(feed: &Feed) -> Result<Vec<String>> {
    let failed = |e| Error::os("using the terminal", e);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let _restored = Restored;
    let mut shown: Option<State> = None;
    let mut ui = Ui::new(feed.source.clone(), out::colours());
    let mut stale = true;
    loop {
        if stale {
            terminal.draw(|frame| draw::draw(frame, shown.as_ref(), &ui)).map_err(failed)?;
            stale = false;
        }
        if event::poll(Duration::from_millis(50)).map_err(failed)? {
            stale = true;
            if let Event::Key(key) = event::read().map_err(failed)? {
                let tables = shown.as_ref().map(|state| sections::tables(state, &ui)).unwrap_or_default();
                let paused = ui.paused;
                match ui.key(key, &tables) {
                    Act::Quit => return Ok(ui.exported),
                    // A source that is gone cannot be asked; that it is gone is on the screen.
                    Act::Record => _ = feed.requests.send(Request::ToggleRecording),
                    Act::Nothing if ui.paused != paused => _ = feed.requests.send(Request::Pause(ui.paused)),
                    Act::Nothing => {}
                }
            }
        }
        loop {
            match feed.updates.try_recv() {
                Ok(Update::Quit) => return Ok(ui.exported),
                Ok(Update::Failed(error)) => return Err(error),
                Ok(update) => {
                    take(update, &mut shown, &mut ui);
                    stale = true;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
    }
}

/// Takes an update in.
fn take(update: Update, shown: &mut Option<State>, ui: &mut Ui) {
    match update {
        Update::State(state) => {
            ui.saw(&state);
            if !ui.paused || shown.is_none() {
                *shown = Some(*state);
            }
        }
        Update::Lost(why) => {
            let since = match &ui.link {
                Link::Stale { since, .. } => since.clone(),
                _ => {
                    let last = shown.as_ref().map_or_else(|| SystemClock.now(), |state| state.at);
                    view::clock_text(last.realtime_ns)
                }
            };
            ui.link = Link::Stale { since, why };
        }
        Update::Note(text) => ui.note = Some(text),
        Update::Recording(file) => ui.recording = file,
        Update::Ended => ui.link = Link::Ended,
        Update::Quit | Update::Failed(_) => {}
    }
}

/// Gives the terminal back however the view ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
