//! A reading with its bodies, each made when it is first asked for and then kept: a flood costs one rendering.

use crate::telemetry::{
    metrics::{accept::Format, text::render, tree::Branch},
    state::State,
};
use hyper::body::Bytes;
use std::{sync::OnceLock, time::Instant};

/// A reading, ready to be answered with.
#[derive(Debug)]
pub struct Answerable {
    /// When it was taken.
    pub taken: Instant,
    /// The interval that it ends.
    pub state: State,
    branches: Vec<Branch>,
    json: OnceLock<Bytes>,
    classic: OnceLock<Bytes>,
    open: OnceLock<Bytes>,
}

impl Answerable {
    /// A reading taken now.
    pub fn new(state: State, branches: Vec<Branch>) -> Answerable {
        let (json, classic, open) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Answerable { taken: Instant::now(), state, branches, json, classic, open }
    }

    /// The body of `/api/v1/state`.
    pub fn json(&self) -> Bytes {
        let make = || {
            // Numbers and strings only: there is nothing in a state that JSON cannot carry but NaN, and no rate is one.
            let mut text = serde_json::to_string(&self.state).unwrap_or_default();
            text.push('\n');
            Bytes::from(text)
        };
        self.json.get_or_init(make).clone()
    }

    /// The body of `/metrics`.
    pub fn text(&self, format: Format) -> Bytes {
        let kept = if format == Format::Classic { &self.classic } else { &self.open };
        kept.get_or_init(|| Bytes::from(render(&self.branches, format))).clone()
    }
}
