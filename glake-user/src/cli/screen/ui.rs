//! What the person at the keyboard chose, and what the screen remembers between intervals.

use super::heat::Minute;
use super::table::{About, Table};
use super::tone::Palette;
use crate::telemetry::state::State;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Overview,
    Devices,
    Queues,
    Workloads,
    Probes,
}

impl View {
    pub(super) const ALL: [View; 5] =
        [View::Overview, View::Devices, View::Queues, View::Workloads, View::Probes];

    pub(super) fn title(self) -> &'static str {
        match self {
            View::Overview => "overview",
            View::Devices => "devices",
            View::Queues => "NVMe queues",
            View::Workloads => "workloads",
            View::Probes => "probes",
        }
    }

    fn step(self, by: usize) -> View {
        let at = View::ALL.iter().position(|v| *v == self).unwrap_or(0);
        View::ALL[(at + by) % View::ALL.len()]
    }
}

/// The order of devices and workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// Devices by name, workloads busiest first.
    Name,
    Read,
    Write,
    Latency,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Name => Sort::Read,
            Sort::Read => Sort::Write,
            Sort::Write => Sort::Latency,
            Sort::Latency => Sort::Name,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Sort::Name => "by name, workloads busiest first",
            Sort::Read => "by reads",
            Sort::Write => "by writes",
            Sort::Latency => "by latency",
        }
    }
}

/// Where the states come from, and whether they still come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// Nothing came yet.
    Waiting,
    /// They come.
    Live,
    /// They stopped: when (UTC), and why.
    Stale { since: String, why: String },
    /// The recording has ended.
    Ended,
}

/// What a key asks of the program around the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    Quit,
    Record,
}

/// The choices and the memory.
#[derive(Debug)]
pub(super) struct Ui {
    pub(super) source: String,
    pub(super) palette: Palette,
    pub(super) view: View,
    pub(super) filter: String,
    pub(super) typing: bool,
    pub(super) paused: bool,
    pub(super) sort: Sort,
    pub(super) selected: Option<usize>,
    pub(super) help: bool,
    /// Queries of the selected row, while they are shown.
    pub(super) queries: Vec<String>,
    /// All queries that were shown, for after the end.
    pub(super) exported: Vec<String>,
    pub(super) note: Option<String>,
    pub(super) recording: Option<String>,
    pub(super) link: Link,
    pub(super) minute: Minute,
}

impl Ui {
    pub(super) fn new(source: String, colours: bool) -> Self {
        Ui {
            source,
            palette: Palette { colours },
            view: View::Overview,
            filter: String::new(),
            typing: false,
            paused: false,
            sort: Sort::Name,
            selected: None,
            help: false,
            queries: Vec::new(),
            exported: Vec::new(),
            note: None,
            recording: None,
            link: Link::Waiting,
            minute: Minute::default(),
        }
    }

    /// Takes note of a new state.
    pub(super) fn saw(&mut self, state: &State) {
        self.link = Link::Live;
        self.minute.add(state);
    }

    /// Acts on a key; `tables` are those on the screen.
    pub(super) fn key(&mut self, key: KeyEvent, tables: &[Table]) -> Act {
        if key.kind == KeyEventKind::Release {
            return Act::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Act::Quit } else { Act::Nothing };
        }
        self.note = None;
        if self.typing {
            self.type_filter(key.code);
            return Act::Nothing;
        }
        if self.help || !self.queries.is_empty() {
            self.help = false;
            self.queries.clear();
            return if key.code == KeyCode::Char('q') { Act::Quit } else { Act::Nothing };
        }
        self.command(key.code, tables)
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) if self.filter.chars().count() < 60 => self.filter.push(c),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Esc => {
                self.filter.clear();
                self.typing = false;
            }
            KeyCode::Enter => self.typing = false,
            _ => {}
        }
        self.selected = None;
    }

    fn command(&mut self, code: KeyCode, tables: &[Table]) -> Act {
        let rows = tables.iter().map(|t| t.rows.len()).sum::<usize>();
        match code {
            KeyCode::Char('q') => return Act::Quit,
            KeyCode::Esc if self.filter.is_empty() && self.selected.is_none() => return Act::Quit,
            KeyCode::Esc => {
                self.filter.clear();
                self.selected = None;
            }
            KeyCode::Char('r') => return Act::Record,
            KeyCode::Tab => self.show(self.view.step(1)),
            KeyCode::BackTab => self.show(self.view.step(View::ALL.len() - 1)),
            KeyCode::Char(c @ '1'..='5') => self.show(View::ALL[c as usize - '1' as usize]),
            KeyCode::Char('/') => {
                self.filter.clear();
                self.typing = true;
            }
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.note = Some(format!("sorted {}", self.sort.title()));
            }
            KeyCode::Char('e') => self.export(tables),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Down | KeyCode::Char('j') => self.select(rows, |at| at + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(rows, |at| at.saturating_sub(1)),
            KeyCode::PageDown => self.select(rows, |at| at + 10),
            KeyCode::PageUp => self.select(rows, |at| at.saturating_sub(10)),
            KeyCode::Home => self.select(rows, |_| 0),
            KeyCode::End => self.select(rows, |_| usize::MAX),
            _ => {}
        }
        Act::Nothing
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.selected = None;
    }

    fn select(&mut self, rows: usize, step: impl Fn(usize) -> usize) {
        self.selected = match (rows, self.selected) {
            (0, _) => None,
            // The first step chooses the first row.
            (_, None) => Some(step(0).saturating_sub(1).min(rows - 1)),
            (_, Some(at)) => Some(step(at).min(rows - 1)),
        };
    }

    fn export(&mut self, tables: &[Table]) {
        let rows: Vec<&About> = tables.iter().flat_map(|t| &t.rows).map(|r| &r.about).collect();
        let Some(about) = self.selected.and_then(|at| rows.get(at)) else {
            self.note = Some("choose a row with the arrow keys first".into());
            return;
        };
        self.queries = super::promql::queries(about);
        for query in &self.queries {
            if !self.exported.contains(query) {
                self.exported.push(query.clone());
            }
        }
    }
}
