//! The FP16 window: a strip with the three edges 2^-24, 2^-14 and 65504.

use ratatui::style::Style;
use ratatui::text::Span;

use super::Theme;
use crate::tui::state::{Window, Zone};

/// How many exponents one character stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// One exponent a character.
    Fine,
    /// Two exponents a character.
    Coarse,
}

/// The exponents at which the strip has an edge: what stands left of it lies below.
const EDGES: [i32; 3] = [-24, -14, 16];

impl Resolution {
    fn step(self) -> i32 {
        match self {
            Resolution::Fine => 1,
            Resolution::Coarse => 2,
        }
    }

    /// Characters of a strip: its cells and the three edges.
    pub fn width(self) -> u16 {
        let finite = (EDGES[2] - Window::FIRST) / self.step();
        finite as u16 + 1 + EDGES.len() as u16
    }

    /// The caption: the edges' values, each centred on its edge.
    pub fn caption(self) -> String {
        let mut text = vec![' '; usize::from(self.width())];
        for (i, label) in ["2^-24", "2^-14", "65504"].into_iter().enumerate() {
            let edge = ((EDGES[i] - Window::FIRST) / self.step()) as usize + i;
            let start = (edge - 2).min(text.len() - label.len());
            text.splice(start..start + label.len(), label.chars());
        }
        text.into_iter().collect()
    }
}

/// The strip of one window. The height of a character is the share of the values there: full from 30 %, and a step less for each
/// factor of three below, so that a thin tail is still seen.
pub fn strip(window: &Window, resolution: Resolution, theme: Theme) -> Vec<Span<'static>> {
    let mut spans = Vec::with_capacity(usize::from(resolution.width()));
    let mut exponent = Window::FIRST;
    while exponent <= Window::LAST {
        if EDGES.contains(&exponent) {
            spans.push(Span::styled(theme.pick("│", "|").to_owned(), theme.dim()));
        }
        let next = if exponent == Window::LAST { exponent + 1 } else { exponent + resolution.step() };
        spans.push(cell(window.share(exponent, next), Zone::of(exponent), theme));
        exponent = next;
    }
    spans
}

fn cell(share: f64, zone: Zone, theme: Theme) -> Span<'static> {
    let symbol = match level(share) {
        None => ' ',
        Some(level) => theme.pick("·▁▂▃▄▅▆▇█", ".,:-=+*#@").chars().nth(level).unwrap_or(' '),
    };
    let style = if symbol == ' ' { Style::new() } else { theme.zone(zone) };
    Span::styled(symbol.to_string(), style)
}

/// 8 for a share of 0.3 and more, 1 for 1e-4, 0 for less that is not nothing.
fn level(share: f64) -> Option<usize> {
    (share > 0.0).then(|| (9.0 + 2.0 * share.log10()).round().clamp(0.0, 8.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::{ExponentHistogram, Stats};

    fn window(exponents: &[(i32, u64)], infinite: u64) -> Window {
        let mut histogram = ExponentHistogram::default();
        exponents.iter().for_each(|&(e, n)| histogram.add(e, n));
        let mut window = Window::default();
        window.add(&Stats { exponents: histogram, pos_inf: infinite, ..Stats::default() }, false);
        window
    }

    fn text(window: &Window, resolution: Resolution, theme: Theme) -> String {
        strip(window, resolution, theme).iter().map(|s| s.content.as_ref()).collect()
    }

    #[test]
    fn the_edges_stand_under_their_captions() {
        assert_eq!(Resolution::Coarse.caption(), " 2^-24 2^-14          65504");
        assert_eq!(text(&Window::default(), Resolution::Coarse, Theme::PLAIN), "   │     │               │ ");
        assert_eq!(Resolution::Fine.caption().len(), usize::from(Resolution::Fine.width()));
    }

    #[test]
    fn subnormals_stand_between_the_first_two_edges() {
        let window = window(&[(-25, 1), (-24, 10), (-15, 10), (-14, 1000)], 0);
        assert_eq!(text(&window, Resolution::Coarse, Theme::PLAIN), "  ▃│▅   ▅│█              │ ");
    }

    #[test]
    fn infinities_and_thin_tails_are_drawn() {
        let window = window(&[(0, 1_000_000), (-20, 1)], 1_000_000);
        assert_eq!(text(&window, Resolution::Coarse, Theme::PLAIN), "   │  ·  │       █       │█");
        let ascii = Theme { unicode: false, colour: true };
        assert_eq!(text(&window, Resolution::Coarse, ascii), "   |  .  |       @       |@");
    }
}
