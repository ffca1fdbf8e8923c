//! The two text formats of Prometheus, made from one tree: the classic one (version 0.0.4) and OpenMetrics 1.0.

use super::{
    accept::Format,
    ledger::Labels,
    table::{Family, LATENCY_BOUNDS_US, SIZE_BOUNDS, Type},
    tree::{Branch, Value},
};
use std::fmt::Write;

/// The body of `/metrics`.
pub fn render(tree: &[Branch], format: Format) -> String {
    let mut out = String::with_capacity(64 * 1024);
    for branch in tree {
        // Writing into a String cannot fail.
        let _ = family(&mut out, branch, format);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn family(out: &mut String, branch: &Branch, format: Format) -> std::fmt::Result {
    let family = branch.family;
    // OpenMetrics names the family of a counter without its suffix.
    let name = match format {
        Format::OpenMetrics => family.name.strip_suffix("_total").unwrap_or(family.name),
        Format::Classic => family.name,
    };
    writeln!(out, "# HELP {name} {}", help(family.help, format))?;
    writeln!(out, "# TYPE {name} {}", family.kind.name())?;
    if format == Format::OpenMetrics && !family.unit.is_empty() {
        writeln!(out, "# UNIT {name} {}", family.unit)?;
    }
    for (labels, value) in &branch.series {
        match value {
            Value::Whole(n) => writeln!(out, "{}{} {n}", family.name, braces(labels, None))?,
            Value::Real(x) => writeln!(out, "{}{} {}", family.name, braces(labels, None), real(*x))?,
            Value::Histogram { below, count, sum } => {
                let bounds = LATENCY_BOUNDS_US.iter().map(|bound| seconds(*bound));
                histogram(out, (family, labels), bounds.zip(below), (*count, &real(*sum)))?;
            }
            Value::Sizes { below, count, sum } => {
                let bounds = SIZE_BOUNDS.iter().map(|bound| format!("{bound}.0"));
                histogram(out, (family, labels), bounds.zip(below), (*count, &sum.to_string()))?;
            }
        }
    }
    Ok(())
}

fn histogram<'a>(
    out: &mut String,
    (family, labels): (&Family, &Labels),
    buckets: impl Iterator<Item = (String, &'a u64)>,
    (count, sum): (u64, &str),
) -> std::fmt::Result {
    debug_assert_eq!(family.kind, Type::Histogram);
    for (le, n) in buckets {
        writeln!(out, "{}_bucket{} {n}", family.name, braces(labels, Some(&le)))?;
    }
    writeln!(out, "{}_bucket{} {count}", family.name, braces(labels, Some("+Inf")))?;
    writeln!(out, "{}_sum{} {sum}", family.name, braces(labels, None))?;
    writeln!(out, "{}_count{} {count}", family.name, braces(labels, None))
}

/// A bound in seconds, exactly: `0.000128`, `8.388608`, `1.0` never occurs among powers of two of a microsecond.
fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn real(x: f64) -> String {
    if x.is_nan() {
        "NaN".into()
    } else if x.is_infinite() {
        if x > 0.0 { "+Inf".into() } else { "-Inf".into() }
    } else {
        // The shortest text that reads back as the same number.
        format!("{x}")
    }
}

fn braces(labels: &Labels, le: Option<&str>) -> String {
    if labels.is_empty() && le.is_none() {
        return String::new();
    }
    let mut out = String::from("{");
    for (i, (name, value)) in labels.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(name);
        out.push_str("=\"");
        escape(&mut out, value);
        out.push('"');
    }
    if let Some(le) = le {
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = write!(out, "{comma}le=\"{le}\"");
    }
    out.push('}');
    out
}

fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
    }
}

fn help(text: &str, format: Format) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    match format {
        Format::Classic => text,
        Format::OpenMetrics => text.replace('"', "\\\""),
    }
}
