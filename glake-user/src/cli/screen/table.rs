//! A table that fits: columns have fixed widths, so that numbers do not jump, and the least needed ones go first when
//! the terminal is narrow.

use super::tone::{Palette, Tone};
use ratatui::text::{Line, Span};

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    title: &'static str,
    width: usize,
    right: bool,
    /// The lower, the sooner it goes. Columns of 9 never go.
    keep: u8,
}

impl Column {
    /// A column of text.
    pub(super) const fn text(title: &'static str, width: usize, keep: u8) -> Self {
        Column { title, width, right: false, keep }
    }

    /// A column of numbers.
    pub(super) const fn number(title: &'static str, width: usize, keep: u8) -> Self {
        Column { title, width, right: true, keep }
    }
}

/// A cell: its text, or runs of text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell(Vec<(String, Tone)>);

impl Cell {
    /// One run of text.
    pub(super) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Cell(vec![(text.into(), tone)])
    }

    /// Several runs of text.
    pub(super) fn runs(runs: Vec<(String, Tone)>) -> Self {
        Cell(runs)
    }

    fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell::toned(text, Tone::Plain)
    }
}

/// What a row is about, for the keys that act on the selected row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum About {
    /// A block device.
    Block(String),
    /// An NVMe controller.
    Nvme(String),
    /// A workload, by its labels.
    Workload(Vec<(&'static str, String)>),
    /// What a workload holds on a GPU, by the labels of both.
    Allocator(Vec<(&'static str, String)>),
    /// A GPU, by the labels that join it.
    Gpu(Vec<(&'static str, String)>),
    /// A finding, by its rule.
    Finding(String),
    /// A probe.
    Probe(String),
}

/// A row.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) about: About,
    pub(super) cells: Vec<Cell>,
}

/// A table. The last column takes what is left of the width.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Row>,
    /// What to say when there is no row.
    pub(super) empty: String,
}

impl Table {
    /// Lines that it would like: the title and every row.
    pub(super) fn wanted(&self) -> usize {
        1 + self.rows.len().max(1)
    }

    /// Keeps the rows whose first cell, or name, holds `filter`, whatever the case.
    pub(super) fn filter(&mut self, filter: &str) {
        if filter.is_empty() {
            return;
        }
        let filter = filter.to_lowercase();
        let before = self.rows.len();
        self.rows.retain(|row| row.cells.iter().any(|c| c.text().to_lowercase().contains(&filter)));
        if before > 0 && self.rows.is_empty() {
            self.empty = format!("none of {before} has \"{filter}\" in it");
        }
    }

    /// At most `height` lines of `width` columns. `selected` counts this table's rows.
    pub(super) fn lines(
        &self,
        (width, height): (usize, usize),
        selected: Option<usize>,
        palette: Palette,
    ) -> Vec<Line<'static>> {
        let columns = self.fitting(width);
        let title = |(i, w): &(usize, usize)| {
            vec![(pad(self.columns[*i].title, *w, self.columns[*i].right), Tone::Title)]
        };
        let line = |cells, selected| line(cells, selected, palette);
        let mut lines = vec![line(columns.iter().map(title).collect(), false)];
        if self.rows.is_empty() {
            lines.push(line(vec![vec![(cut(&self.empty, width.saturating_sub(1)), Tone::Dim)]], false));
        }
        let room = height.saturating_sub(1);
        let (first, shown) = window(self.rows.len(), room, selected);
        for (i, row) in self.rows.iter().enumerate().skip(first).take(shown) {
            let cells =
                columns.iter().map(|(c, w)| fit(row.cells.get(*c), *w, self.columns[*c].right)).collect();
            lines.push(line(cells, selected == Some(i)));
        }
        let hidden = self.rows.len() - shown;
        if hidden > 0 && room > shown {
            lines.push(line(vec![vec![(format!("… {hidden} more"), Tone::Dim)]], false));
        }
        lines.truncate(height);
        lines
    }

    /// The columns that fit and their widths.
    fn fitting(&self, width: usize) -> Vec<(usize, usize)> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        // One space before each column.
        let needed = |shown: &[usize]| shown.iter().map(|i| self.columns[*i].width + 1).sum::<usize>();
        while needed(&shown) > width {
            let least = shown.iter().enumerate().filter(|(_, i)| self.columns[**i].keep < 9);
            let Some((at, _)) = least.min_by_key(|(at, i)| (self.columns[**i].keep, usize::MAX - at)) else {
                break;
            };
            shown.remove(at);
        }
        let spare = width.saturating_sub(needed(&shown));
        let last = shown.last().copied();
        let widen = |i: usize| if Some(i) == last && !self.columns[i].right { spare } else { 0 };
        shown.into_iter().map(|i| (i, self.columns[i].width + widen(i))).collect()
    }
}

/// First row and number of rows to show of `total` in `room` lines: the selected one is among them, and a line is kept
/// for the count of the hidden ones.
fn window(total: usize, room: usize, selected: Option<usize>) -> (usize, usize) {
    if total <= room {
        return (0, total);
    }
    // With room for one line, a row says more than a count.
    let shown = room.saturating_sub(1).max(room.min(1));
    let selected = selected.unwrap_or(0);
    let first = if selected < shown { 0 } else { (selected + 1).saturating_sub(shown).min(total - shown) };
    (first, shown)
}

fn line(cells: Vec<Vec<(String, Tone)>>, selected: bool, palette: Palette) -> Line<'static> {
    let mut spans = Vec::new();
    for cell in cells {
        spans.push(Span::raw(" "));
        spans.extend(cell.into_iter().map(|(text, tone)| Span::styled(text, palette.style(tone))));
    }
    let line = Line::from(spans);
    if selected { line.style(palette.style(Tone::Selected)) } else { line }
}

/// The runs of a cell in exactly `width` columns.
fn fit(cell: Option<&Cell>, width: usize, right: bool) -> Vec<(String, Tone)> {
    let Some(cell) = cell else { return vec![(" ".repeat(width), Tone::Plain)] };
    if let [(text, tone)] = cell.0.as_slice() {
        return vec![(pad(text, width, right), *tone)];
    }
    let mut left = width;
    let mut runs: Vec<(String, Tone)> = Vec::new();
    for (text, tone) in &cell.0 {
        let text = cut(text, left);
        left -= text.chars().count();
        runs.push((text, *tone));
    }
    runs.push((" ".repeat(left), Tone::Plain));
    runs
}

fn pad(text: &str, width: usize, right: bool) -> String {
    let text = cut(text, width);
    let gap = " ".repeat(width - text.chars().count());
    if right { gap + &text } else { text + &gap }
}

/// The text in at most `width` characters, its end marked when cut. Control characters, which names of processes may
/// hold, become question marks: they must not reach the terminal.
pub(super) fn cut(text: &str, width: usize) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    if text.chars().count() <= width {
        return text.chars().map(clean).collect();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).map(clean).collect();
    if width == 0 { kept } else { kept + "…" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Palette = Palette { colours: false };
    const COLUMNS: &[Column] = &[
        Column::text("NAME", 6, 9),
        Column::number("READ", 6, 5),
        Column::number("p50", 4, 1),
        Column::text("WHERE", 5, 3),
    ];

    fn table(n: usize) -> Table {
        let row = |i| Row {
            about: About::Block(format!("d{i}")),
            cells: vec![format!("d{i}").into(), "1 B/s".into(), "2us".into(), "here and there".into()],
        };
        Table { columns: COLUMNS, rows: (0..n).map(row).collect(), empty: "nothing".into() }
    }

    fn text(lines: &[Line<'_>]) -> Vec<String> {
        lines.iter().map(|l| l.to_string()).collect()
    }

    #[test]
    fn the_least_needed_columns_go_first() {
        assert_eq!(
            text(&table(1).lines((30, 9), None, PLAIN)),
            [" NAME     READ  p50 WHERE     ", " d0      1 B/s  2us here and …",]
        );
        assert_eq!(text(&table(1).lines((21, 9), None, PLAIN))[0], " NAME     READ WHERE ");
        assert_eq!(text(&table(1).lines((14, 9), None, PLAIN))[0], " NAME     READ");
        assert_eq!(
            text(&table(1).lines((3, 9), None, PLAIN))[0],
            " NAME  ",
            "the name stays; the terminal clips it"
        );
    }

    #[test]
    fn rows_that_do_not_fit_are_counted() {
        assert_eq!(text(&table(5).lines((30, 4), None, PLAIN))[1..].len(), 3);
        assert!(text(&table(5).lines((30, 4), None, PLAIN))[3].contains("… 3 more"));
    }

    #[test]
    fn the_selected_row_is_always_shown() {
        for selected in 0..5 {
            let lines = text(&table(5).lines((30, 4), Some(selected), PLAIN));
            assert!(lines.iter().any(|l| l.starts_with(&format!(" d{selected} "))), "{selected}: {lines:?}");
        }
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(cut("a\x1b[2Jb\n", 10), "a?[2Jb?");
    }

    proptest::proptest! {
        #[test]
        fn no_size_breaks_it(rows in 0usize..40, width in 0usize..200, height in 0usize..50, selected in 0usize..60) {
            let lines = table(rows).lines((width, height), Some(selected), PLAIN);
            proptest::prop_assert!(lines.len() <= height);
        }
    }
}
