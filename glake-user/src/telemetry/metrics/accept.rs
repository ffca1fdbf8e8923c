//! Which text format a client asks for.

/// A text format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The classic text format, version 0.0.4: what `promtool check metrics` reads.
    Classic,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The content type of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that an `Accept` header prefers (RFC 9110, section 12.5.1). Without one, or when in doubt, the
    /// classic one, which every tool reads.
    pub fn of_accept(header: Option<&str>) -> Format {
        let (mut open, mut classic) = (0.0_f32, 0.0_f32);
        for range in header.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameter = |name: &str| {
                range.split(';').skip(1).find_map(|p| {
                    let (key, value) = p.split_once('=')?;
                    key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
                })
            };
            let weight = parameter("q").map_or(Some(1.0), |q| q.parse::<f32>().ok()).unwrap_or(0.0);
            match kind.as_str() {
                // 0.0.1 is the draft that older Prometheus servers ask for beside 1.0.0.
                "application/openmetrics-text" if parameter("version").is_none_or(|v| v == "1.0.0") => {
                    open = open.max(weight);
                }
                "text/plain" | "text/*" | "*/*" => classic = classic.max(weight),
                _ => {}
            }
        }
        if open > classic { Format::OpenMetrics } else { Format::Classic }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_openmetrics_and_everybody_else_the_classic_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::of_accept(Some(prometheus)), Format::OpenMetrics);
        for header in [
            None,
            Some(""),
            Some("*/*"),
            Some("text/html"),
            Some("application/openmetrics-text;version=0.0.1"),
        ] {
            assert_eq!(Format::of_accept(header), Format::Classic, "{header:?}");
        }
        assert_eq!(
            Format::of_accept(Some("application/openmetrics-text; q=0.2, text/plain")),
            Format::Classic
        );
        assert_eq!(Format::of_accept(Some("application/openmetrics-text")), Format::OpenMetrics);
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_answered(header: String) { let _ = Format::of_accept(Some(&header)); }
    }
}
