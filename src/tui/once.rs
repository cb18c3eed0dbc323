//! One frame as text: `watch RUN --once`.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::app::App;

/// The largest frame that is drawn, in columns and rows.
const LARGEST: u16 = 500;

/// The frame of this size, one line a row, without spaces at the ends.
pub fn frame(app: &mut App, (width, height): (u16, u16)) -> String {
    let backend = TestBackend::new(width.clamp(1, LARGEST), height.clamp(1, LARGEST));
    let Ok(mut terminal) = Terminal::new(backend);
    let Ok(drawn) = terminal.draw(|frame| app.draw(frame));
    text(drawn.buffer)
}

/// The characters of a buffer, one line a row, without spaces at the ends.
pub fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut text = String::new();
    for row in buffer.content.chunks(width) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
