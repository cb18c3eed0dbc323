//! The exponents of a tensor as a chart: a bar an octave, and where the zones of its format begin.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Theme;
use super::number::percent;
use super::plot::LABELS;
use crate::tui::state::{Edges, Spread, Zone};

/// Columns beside those of the bars: the labels and the axis.
const LEFT: usize = LABELS as usize + 1;
/// Octaves shown below the lowest edge and above the highest one.
const MARGIN: (i32, i32) = (3, 2);
/// The zones of a format that spans more octaves are told where they lie near, and not all shown.
const NARROW: i32 = 64;
/// The least octaves that are shown.
const FEWEST: i32 = 16;

/// The columns of a chart that shows FP16's zones whole: its edges, margins and labels.
pub const WIDTH: usize = LEFT + 46 + 4;

/// Which octaves the columns stand for.
#[derive(Clone, Debug, PartialEq)]
struct Grid {
    first: i32,
    last: i32,
    /// Octaves in a bar; with 1, a bar may be several columns wide.
    octaves: i32,
    columns: usize,
    /// Edges that lie inside, each drawn as a column before the bar of its exponent.
    edges: Vec<(i32, String)>,
}

impl Grid {
    fn new(spread: &Spread, edges: Option<&Edges>, room: usize) -> Self {
        let (first, last) = wanted(spread, edges);
        let inside = |&(exponent, _): &(i32, String)| first < exponent && exponent <= last;
        let all = edges.map(|edges| edges.exponents().into_iter().zip(edges.labels())).into_iter().flatten();
        let edges: Vec<_> = all.filter(inside).collect();
        let room = room.saturating_sub(edges.len()).max(1) as i32;
        let span = last - first + 1;
        let octaves = (span + room - 1) / room;
        let columns = if octaves == 1 { (room / span).clamp(1, 3) as usize } else { 1 };
        // What is left of the room shows what lies outside.
        let spare = if octaves == 1 { room / columns as i32 - span } else { 0 };
        let below = spread.exponents.lowest().map_or(0, |lowest| (first - lowest).clamp(0, spare));
        let above = spread.exponents.highest().map_or(0, |highest| (highest - last).clamp(0, spare - below));
        Self { first: first - below, last: last + above, octaves, columns, edges }
    }

    /// The bars, from the lowest octave: each its first exponent and its share. What lies outside is added to the ends.
    fn bars(&self, spread: &Spread) -> Vec<(i32, f64)> {
        let count = ((self.last - self.first) / self.octaves + 1) as usize;
        let mut bars: Vec<(i32, u64)> = (0..count).map(|i| (self.first + i as i32 * self.octaves, 0)).collect();
        for (exponent, n) in spread.exponents.iter() {
            let at = ((exponent.clamp(self.first, self.last) - self.first) / self.octaves) as usize;
            bars[at].1 += n;
        }
        if let Some(last) = bars.last_mut() {
            last.1 += spread.inf;
        }
        let all = spread.total().max(1) as f64;
        bars.into_iter().map(|(exponent, n)| (exponent, n as f64 / all)).collect()
    }
}

/// The octaves that should be seen: those of the zones where they lie close together, else those that occur.
fn wanted(spread: &Spread, edges: Option<&Edges>) -> (i32, i32) {
    let exponents = edges.map(Edges::exponents);
    if let Some([lowest, .., end]) = exponents.filter(|[lowest, .., end]| end - lowest <= NARROW) {
        return (lowest - MARGIN.0, end + MARGIN.1 - 1);
    }
    let (low, high) = (spread.exponents.lowest().unwrap_or(-8), spread.exponents.highest().unwrap_or(8));
    let missing = (FEWEST - (high - low + 1)).max(0);
    (low - 2 - missing / 2, high + 2 + missing / 2)
}

/// Draws the bars into `area`: the share of the highest one at the left, the edges in the last line. The height is the share, and what is not
/// nothing is seen.
pub fn draw(area: Rect, buffer: &mut Buffer, spread: &Spread, edges: Option<&Edges>, theme: Theme) {
    if usize::from(area.width) < LEFT + 8 || area.height < 3 {
        return;
    }
    let grid = Grid::new(spread, edges, usize::from(area.width) - LEFT);
    let bars = grid.bars(spread);
    let highest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    let rows = area.height - 1;
    draw_axis(area, buffer, highest, theme);
    let zone = |exponent| edges.map_or(Zone::Normal, |edges| edges.zone(exponent));
    let (mut x, mut labels) = (area.x + LEFT as u16, Vec::new());
    for &(exponent, share) in &bars {
        if let Some((_, label)) = grid.edges.iter().find(|(edge, _)| (exponent..exponent + grid.octaves).contains(edge))
        {
            draw_edge(area, x, buffer, theme);
            labels.push((x, label.as_str()));
            x += 1;
        }
        let eighths = if share > 0.0 { (share / highest * f64::from(rows) * 8.0).round().max(1.0) as u16 } else { 0 };
        let style = theme.zone(zone(exponent));
        for column in x..x + grid.columns as u16 {
            for row in 0..rows {
                if let Some(symbol) = block(eighths.saturating_sub(row * 8).min(8), theme) {
                    buffer.set_string(column, area.y + rows - 1 - row, symbol, style);
                }
            }
        }
        x += grid.columns as u16;
    }
    // Where two labels do not fit next to each other, the end of the format is told and not what lies near it.
    for &(x, label) in labels.iter().rev() {
        write_label(area, x, label, buffer, theme);
    }
    draw_ends(area, x, &grid, buffer, theme);
}

/// A character that is filled from below.
fn block(eighths: u16, theme: Theme) -> Option<&'static str> {
    const UNICODE: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    const ASCII: [&str; 8] = [".", ".", ".", ":", ":", ":", "#", "#"];
    let symbols = if theme.unicode { UNICODE } else { ASCII };
    usize::from(eighths).checked_sub(1).and_then(|at| symbols.get(at)).copied()
}

fn draw_axis(area: Rect, buffer: &mut Buffer, highest: f64, theme: Theme) {
    let label = |text: String| format!("{text:>width$.width$}", width = LEFT - 1);
    buffer.set_string(area.x, area.y, label(format!("{} %", percent(highest))), theme.dim());
    buffer.set_string(area.x, area.bottom() - 2, label("0 %".into()), theme.dim());
    for y in area.top()..area.bottom() - 1 {
        buffer.set_string(area.x + LEFT as u16 - 1, y, theme.pick("│", "|"), theme.dim());
    }
}

fn draw_edge(area: Rect, x: u16, buffer: &mut Buffer, theme: Theme) {
    for y in area.top()..area.bottom() - 1 {
        buffer.set_string(x, y, theme.pick("┊", ":"), theme.dim());
    }
}

/// The exponents at both ends, where the labels of the edges leave room.
fn draw_ends(area: Rect, end: u16, grid: &Grid, buffer: &mut Buffer, theme: Theme) {
    let left = area.x + LEFT as u16;
    write_label(area, left + 2, &format!("2^{}", grid.first), buffer, theme);
    write_label(area, end.saturating_sub(2), &format!("2^{}", grid.last + 1), buffer, theme);
}

/// Centres a label on a column of the last line, unless something stands there.
fn write_label(area: Rect, x: u16, label: &str, buffer: &mut Buffer, theme: Theme) {
    let width = label.chars().count() as u16;
    let start = x.saturating_sub(width / 2).max(area.x).min(area.right().saturating_sub(width));
    let y = area.bottom() - 1;
    let taken = (start.saturating_sub(1)..(start + width + 1).min(area.right()))
        .any(|x| buffer.cell((x, y)).is_some_and(|cell| cell.symbol() != " "));
    if !taken {
        buffer.set_string(start, y, label, theme.dim());
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas;
    use super::*;
    use crate::observation::{Probe, Site};
    use crate::scan::{Dtype, ExponentHistogram};

    fn edges(probe: Probe, dtype: Dtype) -> Edges {
        let (layer, operator, tensor) = (String::new(), String::new(), String::new());
        Edges::of(&Site { layer, operator, tensor, probe, dtype }).expect("zones")
    }

    fn spread(exponents: &[(i32, u64)], inf: u64) -> Spread {
        let mut histogram = ExponentHistogram::default();
        exponents.iter().for_each(|&(e, n)| histogram.add(e, n));
        Spread { exponents: histogram, inf, ..Spread::default() }
    }

    fn text(size: (usize, usize), spread: &Spread, edges: &Edges, theme: Theme) -> String {
        let drawn = canvas::lines(size.0, size.1, |area, buffer| draw(area, buffer, spread, Some(edges), theme));
        drawn.iter().map(|line| line.to_string().trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn bars_stand_between_the_edges_of_fp16() {
        let spread = spread(&[(-26, 10), (-25, 20), (-20, 40), (-14, 80), (0, 40), (13, 2), (16, 1)], 1);
        let drawn = text((WIDTH, 5), &spread, &edges(Probe::Activation, Dtype::F16), Theme::PLAIN);
        insta::assert_snapshot!(drawn);
    }

    #[test]
    fn a_bf16_tensor_shows_the_octaves_that_occur() {
        let spread = spread(&[(-40, 10), (-38, 20), (-30, 5)], 0);
        let drawn = text((WIDTH, 4), &spread, &edges(Probe::ActivationGrad, Dtype::Bf16), Theme::PLAIN);
        insta::assert_snapshot!(drawn);
    }

    #[test]
    fn without_unicode_it_is_ascii() {
        let spread = spread(&[(-26, 10), (0, 40), (2, 30)], 0);
        let drawn =
            text((WIDTH, 5), &spread, &edges(Probe::Activation, Dtype::F16), Theme { unicode: false, colour: false });
        assert!(drawn.is_ascii() && drawn.contains('#'), "{drawn}");
    }

    #[test]
    fn every_element_stands_in_a_bar_at_any_width() {
        let spread = spread(&[(-149, 3), (-25, 5), (-3, 9), (90, 2)], 4);
        for room in 1..200 {
            for edges in [Some(edges(Probe::ParamGrad, Dtype::F32)), Some(edges(Probe::Param, Dtype::F32)), None] {
                let grid = Grid::new(&spread, edges.as_ref(), room);
                let sum: f64 = grid.bars(&spread).iter().map(|bar| bar.1).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{room}: {grid:?}");
            }
        }
    }

    #[test]
    fn nothing_has_no_bars_and_does_no_harm() {
        let drawn = text((WIDTH, 4), &Spread::default(), &edges(Probe::Param, Dtype::F32), Theme::PLAIN);
        assert!(!drawn.contains('█'), "{drawn}");
        for size in [(0, 0), (10, 2), (20, 3)] {
            text(size, &spread(&[(0, 1)], 0), &edges(Probe::Param, Dtype::F32), Theme::PLAIN);
        }
    }
}
