//! What a piece of text means, and how that looks. Meaning never rests on colour alone: every warning has its word.

use ratatui::style::{Color, Modifier, Style};

/// What a piece of text means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Title,
    Dim,
    Good,
    Warn,
    Bad,
    Selected,
    /// A cell of the latency row, by its share: 0 to 5.
    Heat(u8),
}

/// How tones look: in colour, or without (NO_COLOR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Palette {
    pub(super) colours: bool,
}

impl Palette {
    /// The look of a tone.
    pub(super) fn style(self, tone: Tone) -> Style {
        let plain = Style::new();
        if !self.colours {
            return match tone {
                Tone::Title | Tone::Bad => plain.add_modifier(Modifier::BOLD),
                Tone::Selected => plain.add_modifier(Modifier::REVERSED),
                _ => plain,
            };
        }
        match tone {
            Tone::Plain => plain,
            Tone::Title => plain.fg(Color::Cyan).add_modifier(Modifier::BOLD),
            Tone::Dim => plain.fg(Color::DarkGray),
            Tone::Good => plain.fg(Color::Green),
            Tone::Warn => plain.fg(Color::Yellow),
            Tone::Bad => plain.fg(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Selected => plain.add_modifier(Modifier::REVERSED),
            Tone::Heat(0) => plain.fg(Color::DarkGray),
            Tone::Heat(1 | 2) => plain.fg(Color::Blue),
            Tone::Heat(3) => plain.fg(Color::Green),
            Tone::Heat(4) => plain.fg(Color::Yellow),
            Tone::Heat(_) => plain.fg(Color::Red),
        }
    }
}
