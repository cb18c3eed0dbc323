//! What the dashboard needs of the world: time, keys, records, the command. Tests have a world of their own.

use std::io;
use std::time::Duration;

use crossterm::event::KeyEvent;

use crate::observation::Record;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal changed its size, or its contents were lost.
    Redraw,
    /// A signal that asks the program to end.
    Signal(i32),
}

/// What a poll of one rank's recording brought.
#[derive(Debug, Default)]
pub struct Batch {
    /// The rank whose recording it is.
    pub rank: u32,
    /// Another recording took the place of the one that was read: forget what came before these records.
    pub restarted: bool,
    /// Whether that is the same one, thinned: what was told of it stays told.
    pub rewritten: bool,
    /// New records, in order.
    pub records: Vec<Record>,
    /// Whether more can be read at once.
    pub more: bool,
    /// How long ago the recording last grew.
    pub age: Duration,
    /// Whether the observed process is gone; `None` where that cannot be told.
    pub process_gone: Option<bool>,
    /// Why the recording cannot be read, or what of it was skipped.
    pub problem: Option<String>,
    /// Whether the problem is that it cannot be read at all.
    pub unreadable: bool,
    /// Whether nothing was recorded in it and nothing will be: nobody writes it.
    pub abandoned: bool,
}

/// The command that was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Command {
    /// There is none.
    #[default]
    None,
    /// It runs.
    Running,
    /// It ended with this exit status; 128 + n where signal n ended it.
    Ended(u8),
}

/// What the dashboard needs of the world.
pub trait World {
    /// Time since watching began.
    fn now(&self) -> Duration;
    /// The next event, waited for at most `timeout`.
    fn event(&mut self, timeout: Duration) -> io::Result<Option<Event>>;
    /// What has been recorded since the last call, by rank; bounded, so that a long recording does not hold up the keys.
    fn records(&mut self) -> Vec<Batch>;
    /// The command that was started.
    fn command(&mut self) -> io::Result<Command>;
    /// The last lines that the command printed; `None` where none are kept.
    fn output(&mut self) -> Option<Vec<String>>;
    /// Gives the terminal back to the shell until the program is continued.
    fn suspend(&mut self) -> io::Result<()>;
}
