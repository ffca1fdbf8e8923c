//! Draws a state: the same state and the same choices make the same screen.

use super::sections::tables;
use super::table::{Table, cut};
use super::tone::Tone;
use super::ui::{Link, Ui, View};
use crate::cli::view::{self, per_second_text, rate_text};
use crate::events::sample::ProbeState;
use crate::telemetry::state::{Count, Dma, State, Status};
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};
use ratatui::{Frame, buffer::Buffer};

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: Option<&State>, ui: &Ui) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let top = [Some(header(state, ui, width)), banner(state, ui, width)];
    let mut top: Vec<Line<'static>> = top.into_iter().flatten().collect();
    let mut bottom: Vec<Line<'static>> = Vec::new();
    if let Some(state) = state {
        bottom.extend([facts(state, ui, width), probes(state, ui, width)]);
    }
    bottom.push(keys(ui, width));
    // On a small terminal the tables matter most, then the header, then the last lines.
    while !bottom.is_empty() && top.len() + bottom.len() + 4 > height {
        bottom.remove(0);
    }
    let room = height.saturating_sub(top.len() + bottom.len());
    match state {
        Some(state) => top.extend(body(&tables(state, ui), ui, width, room)),
        None => top.extend(waiting(ui, room)),
    }
    top.resize(height.saturating_sub(bottom.len()).max(top.len().min(height)), Line::default());
    top.extend(bottom);
    top.truncate(height);
    put(frame.buffer_mut(), area, top);
    if ui.help {
        popup(frame, "keys (any key closes this)", &help(), ui);
    } else if !ui.queries.is_empty() {
        popup(frame, "PromQL of this row, printed again on quit (any key closes this)", &ui.queries, ui);
    }
}

fn put(buffer: &mut Buffer, area: Rect, lines: Vec<Line<'static>>) {
    for (y, line) in lines.into_iter().enumerate() {
        if let Ok(y) = u16::try_from(y) {
            buffer.set_line(area.x, area.y + y, &line, area.width);
        }
    }
}

/// The tables, each at least its title and a row, the rest of the room shared out line by line, first ones first.
fn body(tables: &[Table], ui: &Ui, width: usize, room: usize) -> Vec<Line<'static>> {
    let mut heights: Vec<usize> = Vec::new();
    for table in tables {
        let used: usize = heights.iter().sum();
        heights.push(table.wanted().min(2).min(room.saturating_sub(used)));
    }
    let mut left = room.saturating_sub(heights.iter().sum());
    while left > 0 {
        let before = left;
        for (table, height) in tables.iter().zip(&mut heights) {
            if left > 0 && *height < table.wanted() {
                *height += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    // What nobody needs becomes air between the tables.
    let air = left >= tables.len().saturating_sub(1);
    let mut lines = Vec::new();
    let mut first = 0;
    for (table, height) in tables.iter().zip(heights) {
        if air && !lines.is_empty() {
            lines.push(Line::default());
        }
        let selected = ui.selected.and_then(|at| at.checked_sub(first)).filter(|at| *at < table.rows.len());
        first += table.rows.len();
        if height > 0 {
            lines.extend(table.lines((width, height), selected, ui.palette));
        }
    }
    lines
}

fn waiting(ui: &Ui, room: usize) -> Vec<Line<'static>> {
    let text = match &ui.link {
        Link::Stale { .. } => "nothing to show yet; trying again",
        Link::Ended => "this recording holds no sample",
        _ => "waiting for the first reading",
    };
    vec![Line::default(), Line::styled(format!(" {text}"), ui.palette.style(Tone::Dim))]
        .into_iter()
        .take(room)
        .collect()
}

fn header(state: Option<&State>, ui: &Ui, width: usize) -> Line<'static> {
    let mut parts = Vec::new();
    if let Some(state) = state {
        let interval = state.interval_ns.map_or_else(|| "-".into(), |ns| format!("{:.1} s", ns as f64 / 1e9));
        let dropped: u64 = state.dropped.iter().map(|d| d.count.total).sum();
        parts.extend([
            (state.host.hostname.clone(), Tone::Title),
            (format!("up {}", uptime(state.at.monotonic_ns)), Tone::Plain),
            (format!("interval {interval}"), Tone::Plain),
            (format!("dropped {dropped}"), if dropped > 0 { Tone::Warn } else { Tone::Plain }),
        ]);
    }
    parts.push((ui.source.clone(), Tone::Dim));
    if let Some(file) = &ui.recording {
        parts.push((format!("REC {file}"), Tone::Warn));
    }
    let tab = View::ALL.iter().position(|v| *v == ui.view).unwrap_or(0) + 1;
    let right = format!("{} {tab}/{}  [?] keys ", ui.view.title(), View::ALL.len());
    let mut spans = Vec::new();
    let mut used = 0;
    for (text, tone) in parts {
        let text = format!("  {}", cut(&text, 40));
        // The right end stays; what does not fit before it is left out whole.
        if used + text.chars().count() + right.chars().count() > width {
            continue;
        }
        used += text.chars().count();
        spans.push(Span::styled(text, ui.palette.style(tone)));
    }
    spans.push(Span::raw(" ".repeat(width.saturating_sub(used + right.chars().count()))));
    spans.push(Span::styled(right, ui.palette.style(Tone::Dim)));
    Line::from(spans)
}

fn uptime(ns: u64) -> String {
    let minutes = ns / 60_000_000_000;
    let (days, hours, minutes) = (minutes / 1440, minutes / 60 % 24, minutes % 60);
    if days > 0 { format!("{days}d{hours:02}h") } else { format!("{hours}h{minutes:02}m") }
}

/// One line for what the reader must know about everything below it.
fn banner(state: Option<&State>, ui: &Ui, width: usize) -> Option<Line<'static>> {
    let degraded = state.filter(|s| s.health.status == Status::Degraded);
    let (text, tone) = match (&ui.link, ui.typing) {
        (_, true) => (format!("filter: {}_   (Enter keeps it, Esc clears it)", ui.filter), Tone::Title),
        (Link::Stale { since, why }, _) => (format!("STALE since {since}: {why}"), Tone::Bad),
        (Link::Ended, _) => ("END of the recording".to_owned(), Tone::Warn),
        _ if ui.paused => ("PAUSED: p goes on".to_owned(), Tone::Warn),
        _ if ui.note.is_some() => (ui.note.clone()?, Tone::Title),
        _ if !ui.filter.is_empty() => (format!("only rows with \"{}\" (Esc: all)", ui.filter), Tone::Title),
        _ => {
            let reason = degraded?.health.reasons.first()?;
            (format!("DEGRADED: {reason}"), Tone::Warn)
        }
    };
    Some(Line::styled(format!("  {}", cut(&text, width.saturating_sub(2))), ui.palette.style(tone)))
}

/// What has no table: IOMMU, swiotlb, AER, io_uring, GPUs that are not there.
fn facts(state: &State, ui: &Ui, width: usize) -> Line<'static> {
    let mut parts: Vec<(String, Tone)> = Vec::new();
    if let Some(iommu) = &state.iommu {
        let rate = |count: &Count| per_second_text(count.per_second);
        parts.push((format!("IOMMU map {} unmap {}", rate(&iommu.maps), rate(&iommu.unmaps)), Tone::Plain));
    }
    if let Some(faults) = &state.iommu_faults {
        // The kernel log tells again, by device, what an exact source counts.
        let sum = |logged: bool| -> u64 {
            faults.iter().filter(|f| (f.source == "kmsg") == logged).map(|f| f.count.total).sum()
        };
        let n = sum(false).max(sum(true));
        parts.push((format!("IOMMU faults {n}"), if n > 0 { Tone::Bad } else { Tone::Plain }));
    }
    if let Some(bounces) = &state.swiotlb {
        parts.push((format!("swiotlb {}", rate_text(bytes_per_second(bounces))), Tone::Plain));
    }
    if let Some(aer) = &state.aer {
        let corrected: u64 = aer.iter().map(|a| a.corrected).sum();
        let worse: u64 = aer.iter().map(|a| a.nonfatal + a.fatal).sum();
        let tone = if worse > 0 { Tone::Bad } else { Tone::Plain };
        parts.push((format!("AER {corrected} corrected, {worse} uncorrected"), tone));
    }
    if let Some(punted) = &state.io_uring_punted {
        parts.push((format!("io_uring punted {}", per_second_text(punted.per_second)), Tone::Plain));
    }
    if state.host.gpus.is_empty() {
        let why = if state.host.nvidia_driver.is_some() {
            "no GPU bound to the driver"
        } else {
            "no NVIDIA driver"
        };
        parts.push((format!("GPU: {why}"), Tone::Dim));
    }
    joined(parts, ui, width)
}

fn bytes_per_second(devices: &[Dma]) -> Option<f64> {
    view::sum(devices.iter().map(|d| d.bytes.per_second))
}

fn probes(state: &State, ui: &Ui, width: usize) -> Line<'static> {
    let count = |wanted: ProbeState| state.probes.iter().filter(|p| p.state == wanted).count();
    let bad = count(ProbeState::Failed) + count(ProbeState::Detached);
    let mut parts = vec![
        (format!("PROBES {} on, {} off", count(ProbeState::On), count(ProbeState::Off)), Tone::Plain),
        (format!("{bad} failed"), if bad > 0 { Tone::Bad } else { Tone::Plain }),
    ];
    let failed =
        |p: &&crate::events::sample::Probe| matches!(p.state, ProbeState::Failed | ProbeState::Detached);
    if let Some(first) = state.probes.iter().find(failed) {
        parts.push((
            format!("{}: {}", first.name, first.reason.as_deref().unwrap_or("no reason given")),
            Tone::Dim,
        ));
    }
    parts
        .extend(state.cost.ebpf_cpus.map(|cpus| (format!("cost {:.2} % of a CPU", cpus * 100.0), Tone::Dim)));
    joined(parts, ui, width)
}

/// The parts that fit, each whole, except that the last one may be cut at its end.
fn joined(parts: Vec<(String, Tone)>, ui: &Ui, width: usize) -> Line<'static> {
    let mut spans = Vec::new();
    let mut left = width;
    for (text, tone) in parts {
        // Less than this of a text says nothing.
        if left < text.chars().count().min(20) + 2 {
            break;
        }
        let text = format!("  {}", cut(&text, left - 2));
        left -= text.chars().count();
        spans.push(Span::styled(text, ui.palette.style(tone)));
    }
    Line::from(spans)
}

fn keys(ui: &Ui, width: usize) -> Line<'static> {
    let all = ["Tab view", "/ filter", "p pause", "s sort", "e PromQL", "r record", "q quit"];
    let mut text = String::new();
    for key in all {
        if text.chars().count() + key.len() + 2 <= width {
            text.push_str("  ");
            text.push_str(key);
        }
    }
    Line::styled(text, ui.palette.style(Tone::Dim))
}

fn help() -> Vec<String> {
    [
        "Tab, 1-5    overview, devices, NVMe queues, workloads, probes",
        "arrows j k  choose a row          Esc  let go, clear the filter",
        "/           show only rows that hold a text",
        "s           sort by name, reads, writes, latency",
        "p, space    hold the picture; the numbers go on behind it",
        "e           the chosen row as PromQL",
        "r           record to a file, and stop",
        "q, Ctrl-C   quit",
        "",
        "A dash is unknown, never zero. p50 and p99 are the upper",
        "bounds of their bucket, at most half an octave too high.",
        "LATENCY: requests of the last minute, a cell per doubling;",
        ". none  : <1 %  - <5 %  = <20 %  + <50 %  # half and more",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn popup(frame: &mut Frame<'_>, title: &str, lines: &[String], ui: &Ui) {
    let area = frame.area();
    // Long queries wrap, so that all of them can be copied.
    let inner = usize::from(area.width.saturating_sub(4)).clamp(1, 100);
    let mut text: Vec<Line<'static>> = vec![Line::styled(cut(title, inner), ui.palette.style(Tone::Title))];
    for line in lines {
        let chars: Vec<char> = line.chars().collect();
        let pieces = chars.chunks(inner).map(|piece| Line::raw(piece.iter().collect::<String>()));
        if chars.is_empty() { text.push(Line::default()) } else { text.extend(pieces) }
    }
    let wide = text.iter().map(Line::width).max().unwrap_or(0).min(inner) + 2;
    let (w, h) = (wide.min(usize::from(area.width)), (text.len() + 2).min(usize::from(area.height)));
    let (w, h) = (u16::try_from(w).unwrap_or(area.width), u16::try_from(h).unwrap_or(area.height));
    let place = Rect { x: (area.width - w) / 2, y: (area.height - h) / 2, width: w, height: h };
    frame.render_widget(Clear, place);
    let block = ratatui::widgets::Block::bordered();
    frame.render_widget(Paragraph::new(text).block(block), place);
}

#[cfg(test)]
mod tests;
