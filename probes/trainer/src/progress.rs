//! The progress line: rewritten on a terminal, now and then a line elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
const LOG_LINES: u64 = 6;

/// Says on standard error how far the training is.
#[derive(Debug)]
pub struct Progress {
    steps: u64,
    terminal: bool,
    shown: Instant,
}

impl Progress {
    /// Progress towards `steps` steps.
    pub fn new(steps: u64) -> Self {
        Self { steps, terminal: std::io::stderr().is_terminal(), shown: Instant::now() }
    }

    /// Says that `done` steps are done, when it is time to.
    pub fn at(&mut self, done: u64, loss: f64, scale: Option<f64>) {
        if !self.due(done) {
            return;
        }
        self.shown = Instant::now();
        let scale = scale.map_or(String::new(), |scale| format!("  scale {scale}"));
        let line = format!("step {done}/{}  loss {loss:.4}{scale}", self.steps);
        let (begin, end) = match (self.terminal, done == self.steps) {
            (true, false) => ("\r\x1b[K", ""),
            (true, true) => ("\r\x1b[K", "\n"),
            (false, _) => ("", "\n"),
        };
        // A closed standard error is no reason to end a training run.
        let _ = write!(std::io::stderr().lock(), "{begin}{line}{end}");
    }

    fn due(&self, done: u64) -> bool {
        let last = done == self.steps;
        if self.terminal {
            last || self.shown.elapsed() >= TERMINAL_INTERVAL
        } else {
            last || done.is_multiple_of((self.steps / LOG_LINES).max(1))
        }
    }
}
