//! The world as it is: a clock, a recording, a command, a terminal.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::child::{self, Child};
use super::feed::Feed;
use super::terminal::{self, Input, Signals};
use super::world::{Batch, Command, Event, World};

/// The world as it is.
pub struct Live {
    /// The recording.
    pub feed: Feed,
    /// The command that was started.
    pub child: Option<Child>,
    /// The file with its output; that of an earlier start where only a run is watched.
    pub output: PathBuf,
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
        self.child.as_mut().map_or(Ok(Command::None), Child::poll)
    }

    fn output(&mut self) -> Option<Vec<String>> {
        child::tail(&self.output).unwrap_or_else(|error| {
            Some(vec![format!("the output cannot be read ({error}): {}", self.output.display())])
        })
    }

    fn suspend(&mut self) -> io::Result<()> {
        terminal::suspend()
    }
}
