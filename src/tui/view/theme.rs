//! What the terminal can show: colours, Unicode.

use std::ffi::OsStr;

use ratatui::style::{Color, Modifier, Style};

use crate::rules::Severity;
use crate::tui::state::{Quantity, Zone};

/// What the terminal can show. Nothing is said by colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Whether colours are used.
    pub colour: bool,
    /// Whether characters outside ASCII are used.
    pub unicode: bool,
}

impl Theme {
    /// Everything.
    #[cfg(test)]
    pub const FULL: Self = Self { colour: true, unicode: true };
    /// Text that any log can hold.
    pub const PLAIN: Self = Self { colour: false, unicode: true };

    /// The theme for these environment variables: `NO_COLOR` that is not empty and `TERM=dumb` mean no colour; a locale that is set and
    /// does not name UTF-8 means ASCII. Containers often set no locale at all in a terminal that shows UTF-8.
    pub fn from_variables(no_color: Option<&OsStr>, term: Option<&OsStr>, locale: Option<&OsStr>) -> Self {
        let utf8 = |l: &OsStr| ["UTF-8", "UTF8"].iter().any(|u| l.to_string_lossy().to_uppercase().contains(u));
        Self {
            colour: no_color.is_none_or(OsStr::is_empty) && term != Some(OsStr::new("dumb")),
            unicode: locale.is_none_or(utf8),
        }
    }

    /// `unicode` where it can be shown, else `ascii`.
    pub fn pick<'a>(self, unicode: &'a str, ascii: &'a str) -> &'a str {
        if self.unicode { unicode } else { ascii }
    }

    fn coloured(self, colour: Color, otherwise: Modifier) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new().add_modifier(otherwise) }
    }

    /// Text that stays in the background.
    pub fn dim(self) -> Style {
        self.coloured(Color::DarkGray, Modifier::DIM)
    }

    /// A title, of the panel that has the keys or of another.
    pub fn title(self, focused: bool) -> Style {
        if focused { self.coloured(Color::Cyan, Modifier::empty()).bold() } else { Style::new() }
    }

    /// The selected row.
    pub fn selected(self, focused: bool) -> Style {
        if focused { Style::new().reversed() } else { Style::new().bold() }
    }

    /// Something as it should be.
    pub fn good(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    /// Something to look at.
    pub fn warning(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD)
    }

    /// Something broken.
    pub fn bad(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD)
    }

    /// A line in a chart.
    pub fn line(self) -> Style {
        self.coloured(Color::Cyan, Modifier::empty())
    }

    /// The line of a quantity in a chart of several.
    pub fn quantity(self, quantity: Quantity) -> Style {
        let colour = match quantity {
            Quantity::Activation => Color::Cyan,
            Quantity::Gradient => Color::Yellow,
            Quantity::Update => Color::Magenta,
        };
        self.coloured(colour, Modifier::empty())
    }

    /// A key in the footer.
    pub fn key(self) -> Style {
        self.coloured(Color::Cyan, Modifier::BOLD)
    }

    /// A severity.
    pub fn severity(self, severity: Severity) -> Style {
        match severity {
            Severity::Info => self.line(),
            Severity::Warning => self.warning(),
            Severity::Error => self.bad(),
        }
    }

    /// A zone of the FP16 window.
    pub fn zone(self, zone: Zone) -> Style {
        match zone {
            Zone::Lost | Zone::Overflow => self.coloured(Color::Red, Modifier::empty()),
            Zone::Subnormal | Zone::NearOverflow => self.coloured(Color::Yellow, Modifier::empty()),
            Zone::Normal => self.coloured(Color::Green, Modifier::empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_counts_when_it_is_not_empty() {
        let with = |value: Option<&str>| Theme::from_variables(value.map(OsStr::new), None, None).colour;
        assert_eq!([with(None), with(Some("")), with(Some("1"))], [true, true, false]);
    }

    #[test]
    fn only_a_locale_that_says_otherwise_turns_unicode_off() {
        let with = |value: Option<&str>| Theme::from_variables(None, None, value.map(OsStr::new)).unicode;
        assert_eq!([with(None), with(Some("C.UTF-8")), with(Some("de_DE.utf8"))], [true; 3]);
        assert_eq!([with(Some("C")), with(Some("POSIX")), with(Some("en_US.ISO-8859-1"))], [false; 3]);
    }
}
