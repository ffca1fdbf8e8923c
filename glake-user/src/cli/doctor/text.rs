//! The report as people read it.

use super::{Report, Row, Seen, findings::Level};
use crate::host::kernel::{Answer, Fact};

/// A line of columns that is still to be folded.
struct Columns {
    name: String,
    state: &'static str,
    how: String,
    why: String,
}

const NAME: usize = 25;
const STATE: usize = 8;

/// The report in lines of at most `width`.
pub(super) fn lines(report: &Report, width: usize, colours: bool) -> Vec<String> {
    let mut lines = heading(report, width);
    lines.extend(report.surroundings.iter().flat_map(|text| fold(text, width)));
    let facts = report.facts.iter().map(of_fact).collect();
    lines.extend(table("KERNEL", facts, width, colours));
    let coverage = report.coverage.iter().map(of_row).collect();
    lines.extend(table("COVERAGE", coverage, width, colours));
    lines.extend(findings(report, width, colours));
    lines.push(format!("exit {}, {:.2} s", report.exit_code, report.took_ms as f64 / 1000.0));
    lines
}

fn heading(report: &Report, width: usize) -> Vec<String> {
    let host = &report.host;
    let driver = match &host.nvidia_driver {
        Some(version) => format!("NVIDIA {version}"),
        None => "no NVIDIA driver".into(),
    };
    let gpus = match host.gpus.as_slice() {
        [] => "no GPU bound to it".to_owned(),
        [first, rest @ ..] => {
            format!("{} x {}", rest.len() + 1, first.model.as_deref().unwrap_or("GPU of unknown model"))
        }
    };
    let gpus = if host.nvidia_driver.is_none() && host.gpus.is_empty() { "no GPU".into() } else { gpus };
    let left = format!(
        "GLake {}   {}   Linux {} {}   {driver}   {gpus}",
        report.version, host.hostname, host.kernel, host.arch
    );
    let right = format!("{} FAIL  {} WARN  {} UNKNOWN", report.failures, report.warnings, report.unknown);
    let gap = width.saturating_sub(left.chars().count() + right.chars().count());
    if gap >= 2 { vec![format!("{left}{}{right}", " ".repeat(gap))] } else { vec![left, right] }
}

fn of_fact(fact: &Fact) -> Columns {
    let arrow = |text: &String, remedy: &Option<String>| match remedy {
        Some(remedy) => format!("{text} -> {remedy}"),
        None => text.clone(),
    };
    let (state, how, why) = match &fact.answer {
        Answer::Yes { detail } => ("yes", detail.clone(), String::new()),
        Answer::No { reason, remedy } => ("NO", "-".into(), arrow(reason, remedy)),
        Answer::CannotTell { error, remedy } => ("UNKNOWN", "-".into(), arrow(error, remedy)),
    };
    Columns { name: fact.name.replace('_', " "), state, how, why }
}

fn of_row(row: &Row) -> Columns {
    let state = match row.state {
        Seen::Yes => "yes",
        Seen::Partly => "PARTLY",
        Seen::No => "NO",
        Seen::Off => "off",
        Seen::Unknown => "UNKNOWN",
    };
    let how = match row.how.as_slice() {
        [] => "-".into(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} +{}", rest.len()),
    };
    // What is off is off for one reason; every probe has its own in the JSON.
    let why = if row.state == Seen::Off {
        row.why.first().cloned().unwrap_or_default()
    } else {
        row.why.join("\n")
    };
    Columns { name: row.title.clone(), state, how, why }
}

/// Columns side by side, each folded; on a narrow terminal the last one moves below.
fn table(title: &str, rows: Vec<Columns>, width: usize, colours: bool) -> Vec<String> {
    let rest = width.saturating_sub(NAME + STATE + 2);
    let narrow = rest < 60;
    let how_width = if narrow { rest } else { rest * 2 / 5 };
    let why_width = if narrow { width.saturating_sub(4) } else { rest - how_width - 1 };
    let head = format!("{title:<NAME$} {:<STATE$} {:<how_width$}", "STATE", "HOW");
    let head = if narrow { head } else { format!("{head} IF NOT, WHY AND WHAT TO DO") };
    let mut lines = vec![paint(head.trim_end(), "1", colours)];
    for row in rows {
        let names = fold(&row.name, NAME);
        let hows = fold(&row.how, how_width);
        let whys: Vec<String> = row.why.lines().flat_map(|why| fold(why, why_width)).collect();
        let beside = if narrow { &[][..] } else { whys.as_slice() };
        for i in 0..names.len().max(hows.len()).max(beside.len()) {
            let cell = |of: &[String]| of.get(i).cloned().unwrap_or_default();
            let state = if i == 0 { row.state } else { "" };
            let state = paint_padded(state, STATE, colours);
            let line =
                format!("{:<NAME$} {state} {:<how_width$} {}", cell(&names), cell(&hows), cell(beside));
            lines.push(line.trim_end().to_owned());
        }
        if narrow {
            lines.extend(whys.iter().map(|why| format!("    {why}")));
        }
    }
    lines
}

fn findings(report: &Report, width: usize, colours: bool) -> Vec<String> {
    if report.findings.is_empty() {
        return vec![paint("FINDINGS", "1", colours), " none: all that this host has is watched".into()];
    }
    let mut lines = vec![paint("FINDINGS", "1", colours)];
    for finding in &report.findings {
        let level = match finding.level {
            Level::Fail => "FAIL",
            Level::Warn => "WARN",
            Level::Unknown => "UNK",
        };
        let text = format!("{}: {}", finding.what.replace('_', " "), finding.evidence);
        let mut folded = fold(&text, width.saturating_sub(6));
        folded.extend(finding.remedy.iter().flat_map(|r| fold(&format!("-> {r}"), width.saturating_sub(6))));
        for (i, part) in folded.iter().enumerate() {
            let level = if i == 0 { level } else { "" };
            lines.push(format!(" {} {part}", paint_padded(level, 4, colours)));
        }
    }
    lines
}

fn paint_padded(word: &str, width: usize, colours: bool) -> String {
    let code = match word {
        "yes" => "32",
        "NO" | "FAIL" => "1;31",
        "PARTLY" | "WARN" | "UNKNOWN" | "UNK" => "33",
        _ => return format!("{word:<width$}"),
    };
    // Escapes have no width, so the padding is made before.
    paint(word, code, colours) + &" ".repeat(width.saturating_sub(word.len()))
}

fn paint(text: &str, code: &str, colours: bool) -> String {
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Lines of at most `width`, broken at spaces where there are some. At least one line.
fn fold(text: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let mut word: String = word.chars().filter(|c| !c.is_control()).collect();
        let last = lines.last_mut().map(|l| l.chars().count()).unwrap_or(0);
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        while word.chars().count() > width {
            let rest = word.split_off(word.char_indices().nth(width).map_or(word.len(), |(i, _)| i));
            lines.last_mut().into_iter().for_each(|l| l.push_str(&word));
            lines.push(String::new());
            word = rest;
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_breaks_at_spaces_and_long_words_anywhere() {
        assert_eq!(fold("one two three", 9), ["one two", "three"]);
        assert_eq!(fold("abcdefghijkl", 8), ["abcdefgh", "ijkl"]);
        assert_eq!(fold("", 8), [""]);
    }

    proptest::proptest! {
        #[test]
        fn folded_lines_fit_and_lose_nothing(text in "[a-z ]{0,80}", width in 8usize..40) {
            let lines = fold(&text, width);
            proptest::prop_assert!(lines.iter().all(|l| l.chars().count() <= width));
            let bare = |s: &str| s.replace(' ', "");
            proptest::prop_assert_eq!(bare(&lines.concat()), bare(&text));
        }
    }
}
