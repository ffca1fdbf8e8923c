//! Whether GLake works in this process: `GLAKE_DISABLE` above all, then `GLAKE_MODE`.

use crate::error::{Error, Kind, Result};

/// What GLake does in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// The program's own allocator serves; GLake only reports.
    Observe,
    /// GLake serves.
    On,
}

impl Mode {
    /// Its name in `GLAKE_MODE`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Observe => "observe",
            Mode::On => "on",
        }
    }
}

/// The mode that the environment asks for, and why. Without a word there, whoever loaded GLake wants it on. `BadInput` for a
/// value that is none.
pub fn mode() -> Result<(Mode, &'static str)> {
    of(std::env::var("GLAKE_DISABLE").ok().as_deref(), std::env::var("GLAKE_MODE").ok().as_deref())
}

fn of(disable: Option<&str>, mode: Option<&str>) -> Result<(Mode, &'static str)> {
    if disable.is_some_and(|d| !matches!(d, "" | "0" | "false")) {
        return Ok((Mode::Off, "GLAKE_DISABLE is set"));
    }
    match mode {
        None | Some("") => Ok((Mode::On, "it was loaded")),
        Some("on") => Ok((Mode::On, "GLAKE_MODE=on")),
        Some("observe") => Ok((Mode::Observe, "GLAKE_MODE=observe")),
        Some("off") => Ok((Mode::Off, "GLAKE_MODE=off")),
        Some(other) => Err(Error::new(Kind::BadInput, format!("GLAKE_MODE is {other:?}"))
            .remedy("it takes off, observe or on")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disable_is_above_the_mode() {
        for (disable, mode, expected) in [
            (None, None, Mode::On),
            (None, Some("observe"), Mode::Observe),
            (None, Some("off"), Mode::Off),
            (Some("1"), Some("on"), Mode::Off),
            (Some("yes"), None, Mode::Off),
            (Some("0"), Some("on"), Mode::On),
            (Some(""), None, Mode::On),
        ] {
            assert_eq!(of(disable, mode).unwrap().0, expected, "{disable:?} {mode:?}");
        }
        assert_eq!(of(Some("1"), Some("nonsense")).unwrap().0, Mode::Off);
    }

    #[test]
    fn a_wrong_mode_is_named_with_what_it_takes() {
        let e = of(None, Some("On")).unwrap_err();
        assert!(e.chain().contains("On") && e.remedy_text().unwrap().contains("observe"));
    }
}
