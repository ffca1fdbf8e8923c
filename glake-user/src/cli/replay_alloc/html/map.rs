//! The address map: every segment as a strip, wrapped like text, the largest first.

use std::fmt::Write;

use super::escape;
use crate::cli::replay_alloc::Shown;
use crate::cli::replay_alloc::text::{gib, grouped};
use crate::stitch::model::{Region, Use};

const WIDTH: f64 = 1000.0;
const ROW: f64 = 17.0;
const BAR: f64 = 13.0;
/// Rows that all of memory is spread over.
const ROWS: u64 = 26;
/// Between segments, in pixels.
const GAP: f64 = 2.0;
/// Narrower stretches are joined with their neighbours.
const NARROW: f64 = 0.6;
/// Segments drawn one by one; the rest are the smallest and would be specks.
const MOST: usize = 1500;

pub(super) fn of(out: &mut String, s: &Shown<'_>) {
    let mut regions: Vec<&Region> = s.peak.iter().collect();
    regions.sort_by_key(|r| (std::cmp::Reverse(r.size), r.address));
    let left_out = regions.len().saturating_sub(MOST);
    regions.truncate(MOST);
    let total: u64 = regions.iter().map(|r| r.size).sum();
    if total == 0 {
        return;
    }
    let scale = WIDTH * ROWS as f64 / total as f64;
    let mut pen = Pen { out: String::new(), x: 0.0, row: 0.0 };
    for region in &regions {
        pen.region(region, scale);
    }
    let when = if s.played.is_empty() { "when the snapshot was taken" } else { "at its peak" };
    let _ = write!(
        out,
        "<h2>The default allocator's address map {when}</h2><p>{} segments, largest first; a row is {}. Point at a segment \
         for its address.</p><p class=\"sub\">{}</p>",
        grouped(s.peak.len() as u64),
        gib(total / ROWS),
        key(s.peak.iter().any(|r| r.private))
    );
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} {:.0}\">{}</svg>", (pen.row + 1.0) * ROW, pen.out);
    if left_out > 0 {
        let _ =
            write!(out, "<p class=\"sub\">{} smaller segments are not drawn.</p>", grouped(left_out as u64));
    }
}

fn key(private: bool) -> String {
    let mut names = vec![
        ("--used", "in use"),
        ("--whole", "segment wholly free"),
        ("--free", "free inside a segment in use"),
        ("--rounding", "rounding"),
        ("--pending", "waiting for another stream"),
    ];
    if private {
        names.push(("--private", "free in a private pool"));
    }
    names
        .iter()
        .map(|(colour, name)| {
            format!("<i class=\"key\" style=\"background:var({colour})\"></i>{name} &nbsp; ")
        })
        .collect()
}

struct Pen {
    out: String,
    x: f64,
    row: f64,
}

impl Pen {
    fn region(&mut self, region: &Region, scale: f64) {
        let in_use = region.cells.iter().any(|c| matches!(c.state, Use::Allocated | Use::Pending));
        let free: u64 = region.cells.iter().filter(|c| c.state == Use::Free).map(|c| c.size).sum();
        let pool = match (region.small, region.private) {
            (true, false) => "small pool",
            (false, false) => "large pool",
            (true, true) => "private small pool",
            (false, true) => "private large pool",
        };
        let title = format!(
            "0x{:x}: {}, {pool}, stream {}, {} free",
            region.address,
            gib(region.size),
            region.stream,
            gib(free)
        );
        let _ = write!(self.out, "<g><title>{}</title>", escape(&title));
        let mut class = "";
        let mut bytes = 0u64;
        for cell in &region.cells {
            for (next, size) in parts(cell, in_use, region.private) {
                let tiny = (bytes as f64) * scale < NARROW;
                if next != class && !tiny {
                    self.strip(class, bytes as f64 * scale);
                    bytes = 0;
                }
                if next != class {
                    class = if tiny && size < bytes { class } else { next };
                }
                bytes += size;
            }
        }
        self.strip(class, bytes as f64 * scale);
        self.out.push_str("</g>");
        self.x += GAP;
    }

    /// A stretch of one colour, over as many rows as it takes.
    fn strip(&mut self, class: &str, mut width: f64) {
        while width > 0.01 {
            if self.x >= WIDTH - 0.5 {
                self.x = 0.0;
                self.row += 1.0;
            }
            let here = width.min(WIDTH - self.x);
            if !class.is_empty() {
                let _ = write!(
                    self.out,
                    "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.0}\" width=\"{here:.1}\" height=\"{BAR}\"/>",
                    self.x,
                    self.row * ROW
                );
            }
            self.x += here;
            width -= here;
        }
    }
}

/// A block as stretches of one colour each.
fn parts(
    cell: &crate::stitch::model::Cell,
    in_use: bool,
    private: bool,
) -> impl Iterator<Item = (&'static str, u64)> {
    let (first, second) = match cell.state {
        Use::Allocated => {
            let asked = cell.requested.min(cell.size);
            (("u", asked), Some(("r", cell.size - asked)))
        }
        Use::Pending => (("p", cell.size), None),
        Use::Free if private => (("v", cell.size), None),
        Use::Free if in_use => (("f", cell.size), None),
        Use::Free => (("w", cell.size), None),
        Use::Unmapped => (("", cell.size), None),
    };
    [Some(first), second].into_iter().flatten().filter(|(_, size)| *size > 0)
}
