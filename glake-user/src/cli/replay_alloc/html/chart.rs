//! Allocated against reserved over time.

use std::fmt::Write;

use super::class;
use crate::cli::replay_alloc::Shown;
use crate::cli::replay_alloc::text::gib;
use crate::stitch::model::study::{POINTS, Played, Point};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

pub(super) fn curves(out: &mut String, s: &Shown<'_>) {
    let most = s.played.iter().map(|p| p.outcome.peak_reserved).max().unwrap_or(0).max(1);
    let plot = Plot { step: step(most), top: 0 };
    let plot = Plot { top: most.div_ceil(plot.step) * plot.step, ..plot };
    let (end, unit) = if s.run.timed && s.run.span_ns() > 0 {
        match s.run.span_ns() as f64 / 1e9 {
            short if short < 2.0 => (short * 1e3, "ms"),
            seconds => (seconds, "s"),
        }
    } else {
        (s.run.events.len() as f64, "events")
    };
    let _ = write!(
        out,
        "<h2>Allocated against reserved</h2><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"memory over time\" data-curves='{}'>",
        data(s, end, unit)
    );
    plot.axes(out, end, unit);
    if let Some(first) = s.played.first() {
        let _ = write!(out, "<path class=\"area\" d=\"{}\"/>", plot.area(&first.curve));
    }
    for p in &s.played {
        let _ = write!(out, "<path class=\"line {}\" d=\"{}\"/>", class(p), plot.line(&p.curve));
    }
    let bottom = HEIGHT - BOTTOM;
    let _ = write!(
        out,
        "<line class=\"cursor\" x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{TOP}\" y2=\"{bottom}\"/></svg>"
    );
    legend(out, &s.played);
}

fn legend(out: &mut String, played: &[Played]) {
    out.push_str("<div class=\"legend\">");
    if let Some(first) = played.first() {
        let peak = gib(first.outcome.peak_requested);
        let _ = write!(out, "<span><i class=\"dot m-allocated\"></i>allocated <b>{peak}</b></span>");
    }
    for p in played {
        let peak = gib(p.outcome.peak_reserved);
        let _ =
            write!(out, "<span><i class=\"dot {}\"></i>{} reserved <b>{peak}</b></span>", class(p), p.name);
    }
    out.push_str("<span class=\"when\">peaks</span></div>");
}

struct Plot {
    step: u64,
    top: u64,
}

/// About five lines at round numbers of bytes.
fn step(most: u64) -> u64 {
    let mut step = 1u64;
    while most / step > 5 {
        step *= 2;
    }
    step
}

impl Plot {
    fn x(i: usize) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * i as f64 / (POINTS - 1) as f64
    }

    fn y(&self, bytes: u64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * bytes as f64 / self.top as f64
    }

    fn axes(&self, out: &mut String, end: f64, unit: &str) {
        let right = WIDTH - RIGHT;
        for i in 0..=self.top / self.step {
            let bytes = i * self.step;
            let y = self.y(bytes);
            let label = short(bytes);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        for i in 0..=4 {
            let share = f64::from(i) / 4.0;
            let x = LEFT + (WIDTH - LEFT - RIGHT) * share;
            let anchor = ["start", "middle", "middle", "middle", "end"][i as usize];
            let value = end * share;
            let digits = usize::from(unit == "s");
            let text = format!("{value:.digits$} {unit}");
            let _ = write!(
                out,
                "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{text}</text>",
                HEIGHT - 8.0
            );
        }
    }

    /// Steps, since memory changes at once; points that change nothing are left out.
    fn line(&self, curve: &[Point]) -> String {
        let mut out = String::new();
        let mut last = None;
        for (i, point) in curve.iter().enumerate() {
            let y = self.y(point.reserved);
            match last {
                None => drop(write!(out, "M{:.1} {y:.1}", Self::x(i))),
                Some(before) if before != point.reserved => {
                    let _ = write!(out, "H{:.1}V{y:.1}", Self::x(i));
                }
                _ => {}
            }
            last = Some(point.reserved);
        }
        let _ = write!(out, "H{:.1}", Self::x(POINTS - 1));
        out
    }

    fn area(&self, curve: &[Point]) -> String {
        let mut out = format!("M{:.1} {:.1}", Self::x(0), self.y(0));
        for (i, point) in curve.iter().enumerate() {
            let _ = write!(out, "L{:.1} {:.1}", Self::x(i), self.y(point.requested));
        }
        let _ = write!(out, "L{:.1} {:.1}Z", Self::x(POINTS - 1), self.y(0));
        out
    }
}

/// `16 GiB`, `512 MiB`: axis labels are powers of two.
fn short(bytes: u64) -> String {
    match bytes {
        0 => "0".to_string(),
        n if n >= 1 << 30 => format!("{} GiB", n >> 30),
        n if n >= 1 << 20 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// The curves for the script, in GiB.
fn data(s: &Shown<'_>, end: f64, unit: &str) -> String {
    let gib = |bytes: u64| (bytes as f64 / f64::from(1 << 30) * 1000.0).round() / 1000.0;
    let mut series: Vec<Vec<f64>> = Vec::new();
    if let Some(first) = s.played.first() {
        series.push(first.curve.iter().map(|p| gib(p.requested)).collect());
    }
    series.extend(s.played.iter().map(|p| p.curve.iter().map(|p| gib(p.reserved)).collect::<Vec<f64>>()));
    serde_json::json!({
        "left": LEFT,
        "width": WIDTH - LEFT - RIGHT,
        "x": {"end": end, "unit": unit, "digits": if unit == "s" { 2 } else { 0 }},
        "series": series,
    })
    .to_string()
}
