//! The dashboard: reads, draws, answers keys; generic over the backend and over the world.

use std::time::Duration;

use anyhow::Context;
use crossterm::event::KeyEvent;
use ratatui::backend::Backend;
use ratatui::{Frame, Terminal};

use super::keys::{self, Action, Answer};
use super::state::{LayerDetail, Ranks, RunState, Snapshot};
use super::ui::{Overlay, Page, Ui};
use super::view::{self, Theme, View};
use super::world::{Batch, Command, Event, World};
use crate::report::{Canvas, Row, Selection, whatif_rows};

/// How often the world is looked at: a keystroke is answered and a step is seen within this time.
const POLL: Duration = Duration::from_millis(100);
/// How often the picture is renewed at most, while steps come in.
const REFRESH: Duration = Duration::from_millis(250);
/// How long records are read before the keys are looked at again.
const READ: Duration = Duration::from_millis(150);

/// Why the dashboard was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The user left, or the run ended and that was to be the end.
    Quit,
    /// The user left and the command goes on.
    LeaveRunning,
    /// The user left and the command is to be stopped.
    Stop,
    /// This signal asked for it.
    Signal(i32),
}

/// The run as it was when the picture was held: every page of it can still be opened.
struct Held {
    ranks: Ranks,
    now: Duration,
}

/// The lines of what-if.
struct WhatIfPage {
    /// The width and the scale that they were made for.
    made_for: (usize, Option<i32>),
    rows: Vec<Row>,
}

/// The dashboard.
pub struct App {
    ranks: Ranks,
    snapshot: Snapshot,
    /// What each rank was doing when the picture was made.
    states: Vec<RunState>,
    /// The layer whose page is shown.
    detail: Option<LayerDetail>,
    whatif: Option<WhatIfPage>,
    ui: Ui,
    theme: Theme,
    exit_at_end: bool,
    held: Option<Held>,
    output: Option<Vec<String>>,
    command: Command,
    drained: bool,
    opened: bool,
    news: bool,
    redraw: bool,
    /// Whether what stands on the terminal is no longer what was drawn last.
    clear: bool,
    drawn_at: Option<Duration>,
    exit: Option<Exit>,
}

impl App {
    /// A dashboard of a run of which nothing was read yet.
    pub fn new(ranks: Ranks, theme: Theme, exit_at_end: bool) -> Self {
        Self {
            snapshot: ranks.snapshot(None, Duration::ZERO),
            states: ranks.states(Duration::ZERO),
            ranks,
            detail: None,
            whatif: None,
            ui: Ui::default(),
            theme,
            exit_at_end,
            held: None,
            output: None,
            command: Command::None,
            drained: false,
            opened: false,
            news: true,
            redraw: true,
            clear: false,
            drawn_at: None,
            exit: None,
        }
    }

    /// What was read of the run.
    pub fn into_ranks(self) -> Ranks {
        self.ranks
    }

    /// Reads all there is and renews the picture, for one frame.
    pub fn read_all(&mut self, world: &mut impl World) -> anyhow::Result<()> {
        while !self.drained {
            self.read(world)?;
        }
        self.refresh(world);
        Ok(())
    }

    /// Shows the run until there is a reason to leave.
    pub fn show<B: Backend>(&mut self, terminal: &mut Terminal<B>, world: &mut impl World) -> anyhow::Result<Exit>
    where
        B::Error: Send + Sync + 'static,
    {
        loop {
            self.read(world)?;
            if std::mem::take(&mut self.clear) {
                terminal.clear().context("the terminal cannot be cleared")?;
            }
            if self.wants_drawing(world.now()) {
                self.refresh(world);
                terminal.draw(|frame| self.draw(frame)).context("the terminal does not take the picture")?;
            }
            if let Some(exit) = self.exit {
                return Ok(exit);
            }
            let timeout = if self.drained { POLL } else { Duration::ZERO };
            if let Some(event) = world.event(timeout).context("the terminal gives no keys any more")? {
                self.handle(event, world)?;
            }
        }
    }

    /// Reads what is new, for a bounded time.
    pub fn read(&mut self, world: &mut impl World) -> anyhow::Result<()> {
        // The command first: what it recorded before it ended is read after.
        let command = world.command().context("the command cannot be waited for")?;
        let until = world.now() + READ;
        loop {
            let batches = world.records();
            self.drained = batches.iter().all(|batch| !batch.more);
            batches.into_iter().for_each(|batch| self.take(batch, world.now()));
            if self.drained || world.now() >= until {
                break;
            }
        }
        if self.drained {
            self.take_command(command);
            self.mark_replay();
        }
        if self.exit_at_end && self.drained && self.is_over(world.now()) {
            self.exit = Some(Exit::Quit);
        }
        Ok(())
    }

    fn take(&mut self, batch: Batch, now: Duration) {
        if batch.restarted {
            self.held = None;
        }
        self.news |= self.ranks.take(batch, now);
    }

    /// After everything that was recorded so far was read: a run that has ended by then is a replay.
    fn mark_replay(&mut self) {
        if !std::mem::replace(&mut self.opened, true) && self.command == Command::None {
            self.ranks.mark_replay();
        }
    }

    fn take_command(&mut self, command: Command) {
        if std::mem::replace(&mut self.command, command) == command {
            return;
        }
        let notice = match command {
            Command::Ended(status) => Some(ended_notice(status, self.ranks.has_begun())),
            Command::None | Command::Running => None,
        };
        self.ranks.set_command(matches!(command, Command::Ended(_)), notice);
        if self.ui.overlay == Some(Overlay::Quit) {
            self.ui.overlay = None;
        }
        (self.news, self.redraw) = (true, true);
    }

    /// Whether nothing more will happen.
    pub fn is_over(&self, now: Duration) -> bool {
        let run_is_over = self.ranks.are_over(now);
        match self.command {
            Command::None => run_is_over,
            Command::Running => false,
            Command::Ended(_) => true,
        }
    }

    fn wants_drawing(&mut self, now: Duration) -> bool {
        let due = self.drawn_at.is_none_or(|at| now.saturating_sub(at) >= REFRESH);
        let state_changed = self.held.is_none() && self.ranks.states(now) != self.states;
        let output_shown = self.ui.page == Page::Output;
        self.redraw || (due && (self.news || state_changed || output_shown))
    }

    /// Renews the picture, unless it is held.
    pub fn refresh(&mut self, world: &mut impl World) {
        let now = world.now();
        let states = self.ranks.states(now);
        let changed = self.held.is_none() && (self.news || states != self.states);
        let (ranks, now_shown) = self.held.as_ref().map_or((&self.ranks, now), |held| (&held.ranks, held.now));
        let other_rank = self.ui.rank.is_some_and(|chosen| self.snapshot.rank.is_some_and(|shown| shown != chosen));
        if changed || other_rank {
            (self.snapshot, self.states) = (ranks.snapshot(self.ui.rank, now_shown), states);
            self.whatif = None;
        }
        self.detail = match &self.ui.page {
            Page::Layer(path) => {
                let still = self
                    .detail
                    .take()
                    .filter(|d| d.path == *path && !changed && !other_rank && d.of_all == self.ui.all_ranks);
                still.or_else(|| Some(ranks.layer(path, self.ui.rank, self.ui.all_ranks)))
            }
            _ => None,
        };
        if self.ui.page == Page::Output || self.output.is_none() {
            self.output = world.output();
        }
        (self.news, self.redraw, self.drawn_at) = (false, false, Some(now));
    }

    /// Draws the picture.
    pub fn draw(&mut self, frame: &mut Frame) {
        self.renew_whatif(usize::from(frame.area().width));
        let view = View {
            snapshot: &self.snapshot,
            detail: self.detail.as_ref(),
            whatif: self.whatif.as_ref().map_or(&[], |page| &page.rows),
            ui: &self.ui,
            theme: self.theme,
            held: self.held.as_ref().map(|held| self.steps_since(held)),
            output: self.output.as_deref(),
        };
        self.ui.extent = view::draw(frame, &view);
    }

    /// Makes the page of what-if where it is shown and not there yet: of a large model that takes longer than a frame.
    fn renew_whatif(&mut self, width: usize) {
        let made_for = (width, self.ui.scale);
        let is_there = self.whatif.as_ref().is_some_and(|page| page.made_for == made_for);
        if self.ui.page != Page::WhatIf || is_there {
            return;
        }
        let ranks = self.held.as_ref().map_or(&self.ranks, |held| &held.ranks);
        let selection = Selection { scale: self.ui.scale, layers: None };
        let canvas = Canvas { width, unicode: self.theme.unicode };
        self.whatif = Some(WhatIfPage { made_for, rows: whatif_rows(&ranks.whatif(), &selection, &canvas) });
    }

    fn handle(&mut self, event: Event, world: &mut impl World) -> anyhow::Result<()> {
        self.redraw = true;
        match event {
            Event::Key(key) => self.press(key, world)?,
            Event::Redraw => self.clear = true,
            Event::Signal(signal) => self.exit = Some(Exit::Signal(signal)),
        }
        Ok(())
    }

    /// Answers a key.
    pub fn press(&mut self, key: KeyEvent, world: &mut impl World) -> anyhow::Result<()> {
        if self.ui.overlay == Some(Overlay::Quit) {
            return self.answer(key);
        }
        if let Some(edit) = keys::edit(key).filter(|_| self.ui.writes_filter) {
            self.ui.edit(edit, &self.snapshot);
            return Ok(());
        }
        match keys::action(key) {
            Some(Action::Quit) if self.command == Command::Running => self.ui.overlay = Some(Overlay::Quit),
            Some(Action::Quit) => self.exit = Some(Exit::Quit),
            Some(Action::Pause) => self.hold_or_go_on(world.now()),
            Some(Action::Suspend) => {
                world.suspend().context("the program cannot be suspended")?;
                self.clear = true;
            }
            Some(action) => self.ui.act(action, &self.snapshot, self.detail.as_ref()),
            None => {}
        }
        Ok(())
    }

    fn answer(&mut self, key: KeyEvent) -> anyhow::Result<()> {
        match keys::answer(key) {
            Some(Answer::Leave) => self.exit = Some(Exit::LeaveRunning),
            Some(Answer::Stop) => self.exit = Some(Exit::Stop),
            Some(Answer::Stay) => self.ui.overlay = None,
            None => {}
        }
        Ok(())
    }

    /// Steps of the rank that is shown that came in since the picture was held.
    fn steps_since(&self, held: &Held) -> u64 {
        let shown = held.ranks.shown(self.ui.rank);
        self.ranks.run(shown).steps().saturating_sub(held.ranks.run(shown).steps())
    }

    fn hold_or_go_on(&mut self, now: Duration) {
        self.held = match self.held {
            None => Some(Held { ranks: self.ranks.clone(), now }),
            Some(_) => None,
        };
        // What is held is what has been read up to now, not what was drawn last.
        self.snapshot = self.ranks.snapshot(self.ui.rank, now);
        (self.news, self.detail, self.whatif) = (true, None, None);
    }
}

fn ended_notice(status: u8, recorded: bool) -> String {
    match (status, recorded) {
        (0, true) => "the command has ended; q leaves, o shows what it printed".into(),
        (_, true) => format!("the command has ended with status {status}; o shows what it printed"),
        (_, false) => format!(
            "the command has ended with status {status} and recorded nothing: does it call Doctor::attach? o shows what it printed"
        ),
    }
}
