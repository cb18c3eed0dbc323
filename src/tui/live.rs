//! The world as it is: a clock, a recording, a command, a terminal.

use std::io;
use std::time::{Duration, Instant};

use super::child::Child;
use super::feed::Feed;
use super::output::Output;
use super::terminal::{self, Input, Signals};
use super::world::{Batch, Command, Event, World};

/// The world as it is.
pub struct Live {
    /// The recording.
    pub feed: Feed,
    /// The command that was started.
    pub child: Option<Child>,
    /// Its output; that of an earlier start where only a run is watched.
    pub output: Output,
    /// Signals that ask to end.
    pub signals: Signals,
    /// Where events come from.
    pub input: Input,
    /// When watching began.
    pub start: Instant,
}

impl World for Live {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn event(&mut self, timeout: Duration) -> io::Result<Option<Event>> {
        terminal::next_event(self.input, &self.signals, timeout)
    }

    fn records(&mut self) -> Vec<Batch> {
        self.feed.poll()
    }

    fn command(&mut self) -> io::Result<Command> {
        let Some(child) = &mut self.child else { return Ok(Command::None) };
        self.output.keep_short();
        child.poll()
    }

    fn output(&mut self) -> Option<Vec<String>> {
        self.output.tail()
    }

    fn suspend(&mut self) -> io::Result<()> {
        terminal::suspend()
    }
}
