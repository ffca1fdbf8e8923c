//! The page: one file, nothing loaded from anywhere, readable without a script.

mod chart;
mod map;

use std::fmt::Write;

use super::text::{self, gib, grouped};
use super::{Shown, Verdict};
use crate::stitch::model::study::Played;
use crate::stitch::snapshot::NO_SITE;

/// Call sites shown.
const SITES: usize = 12;

pub(super) fn page(s: &Shown<'_>) -> String {
    let mut out = String::with_capacity(1 << 18);
    let title = escape(&text::headline(s));
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>glake: {}</title>\n<style>\n{}</style></head>\n<body><main>\n",
        escape(&s.args.file.display().to_string()),
        include_str!("html/page.css")
    );
    let _ = write!(out, "<h1>Would it help?</h1><p class=\"sub\">{title}</p>");
    let class = match s.verdict {
        Verdict::Helps => "good",
        Verdict::ExpandableIsEnough => "fair",
        Verdict::NoGain | Verdict::NoTrace => "none",
    };
    let _ = write!(out, "<p class=\"verdict {class}\">{}</p>", escape(&text::verdict(s)));
    let _ = write!(out, "<p class=\"check\"><b>Check</b> {}</p>", escape(&text::check(s)));
    if !s.played.is_empty() {
        table(&mut out, s);
        chart::curves(&mut out, s);
    }
    causes(&mut out, s);
    map::of(&mut out, s);
    sites(&mut out, s);
    out.push_str("<h2>Limits</h2><ul>");
    for limit in text::limits(s) {
        let _ = write!(out, "<li>{}</li>", escape(&limit));
    }
    let _ = write!(
        out,
        "</ul><p class=\"sub\">glake {}; this page loads nothing.</p></main>\n<script>\n{}</script></body></html>\n",
        env!("CARGO_PKG_VERSION"),
        include_str!("html/page.js")
    );
    out
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The class that colours an allocator everywhere on the page.
fn class(p: &Played) -> &'static str {
    match p.name {
        "default" => "m-default",
        "expandable_segments" => "m-expandable",
        _ => "m-glake",
    }
}

fn table(out: &mut String, s: &Shown<'_>) {
    out.push_str(
        "<table><thead><tr><th>allocator<th class=\"n\">peak allocated<th class=\"n\">peak reserved<th class=\"n\">\
         allocated / reserved<th class=\"n\">driver calls<th class=\"n\">driver time<th class=\"n\">waited for<th class=\"n\">needs<th class=\"n\">smallest GPU</tr></thead><tbody>",
    );
    for p in &s.played {
        let o = &p.outcome;
        let ratio =
            o.allocated_to_reserved_ratio().map_or("-".to_string(), |r| format!("{:.1} %", r * 100.0));
        let _ = write!(
            out,
            "<tr><td class=\"name\"><i class=\"dot {}\"></i>{}<td class=\"n\">{}<td class=\"n\"><b>{}</b><td class=\"n\">{ratio}\
             <td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
            class(p),
            p.name,
            gib(o.peak_requested),
            gib(o.peak_reserved),
            grouped(p.driver_calls()),
            crate::units::duration_ns(p.driver_ns()),
            crate::units::duration_ns(p.foreground_ns()),
            p.needs.map_or("-".to_string(), gib),
            text::smallest(p).map_or("none".to_string(), |g| format!("{g} GiB")),
        );
    }
    out.push_str("</tbody></table>");
    if let Some(why) = &s.without_glake {
        let _ = write!(out, "<p class=\"sub\">glake was not played: {}</p>", escape(why));
    }
}

fn causes(out: &mut String, s: &Shown<'_>) {
    let gap = s.causes.gap();
    let when =
        if s.played.is_empty() { "when the snapshot was taken" } else { "at the default allocator's peak" };
    let _ = write!(
        out,
        "<h2>Where the idle memory is</h2><p>{} held and {} asked for {when}: <b>{}</b> idle.</p><table class=\"bars\"><tbody>",
        gib(s.causes.reserved),
        gib(s.causes.requested),
        gib(gap)
    );
    for (cause, bytes) in s.causes.causes() {
        let share = bytes as f64 / gap.max(1) as f64 * 100.0;
        let _ = write!(
            out,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{share:.1} %<td class=\"bar\"><i style=\"width:{share:.2}%\"></i></tr>",
            escape(&cause),
            gib(bytes)
        );
    }
    out.push_str("</tbody></table>");
}

fn sites(out: &mut String, s: &Shown<'_>) {
    out.push_str("<h2>What strands it</h2>");
    let named: Vec<_> = s.pins.iter().filter(|p| p.site != NO_SITE).take(SITES).collect();
    if named.is_empty() {
        let why = if s.pins.is_empty() {
            "No segment is partly free: nothing is pinned by a live tensor."
        } else {
            "The recording holds no call sites in Python code. Record them with \
             torch.cuda.memory._record_memory_history(stacks=\"python\")."
        };
        let _ = write!(out, "<p>{why}</p>");
        return;
    }
    out.push_str(
        "<p>Tensors allocated here live in segments that are otherwise free; the free bytes are shared out by the bytes \
         held.</p><table><thead><tr><th>call site, innermost first<th class=\"n\">holds<th class=\"n\">strands</tr></thead><tbody>",
    );
    for pin in named {
        let site = s.recording.site(pin.site).unwrap_or_default();
        let _ = write!(
            out,
            "<tr><td class=\"code\">{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
            escape(&site),
            gib(pin.holds),
            gib(pin.strands)
        );
    }
    out.push_str("</tbody></table>");
}
