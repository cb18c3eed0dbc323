//! The dashboard: reads, draws, answers keys; generic over the backend and over the world.

use std::time::Duration;

use anyhow::Context;
use crossterm::event::KeyEvent;
use ratatui::backend::Backend;
use ratatui::{Frame, Terminal};

use super::keys::{self, Action, Answer};
use super::state::{LayerDetail, Run, Snapshot};
use super::ui::{Overlay, Page, Ui};
use super::view::{self, Theme, View};
use super::world::{Batch, Command, Event, World};

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
    run: Run,
    now: Duration,
}

/// The dashboard.
pub struct App {
    run: Run,
    snapshot: Snapshot,
    /// The layer whose page is shown.
    detail: Option<LayerDetail>,
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
    pub fn new(run: Run, theme: Theme, exit_at_end: bool) -> Self {
        Self {
            snapshot: run.snapshot(Duration::ZERO),
            run,
            detail: None,
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
    pub fn into_run(self) -> Run {
        self.run
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
            let batch = world.records();
            self.drained = !batch.more;
            self.take(batch, world.now());
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
            self.run.restart();
            self.held = None;
        }
        let source = &mut self.run.source;
        let changed =
            source.problem != batch.problem || source.process_gone != batch.process_gone || !batch.records.is_empty();
        source.problem = batch.problem;
        source.process_gone = batch.process_gone;
        if !batch.records.is_empty() {
            self.run.apply(batch.records, now, batch.age);
        }
        self.news |= changed || batch.restarted;
    }

    /// After everything that was recorded so far was read: a run that has ended by then is a replay.
    fn mark_replay(&mut self) {
        if !std::mem::replace(&mut self.opened, true) && self.command == Command::None {
            self.run.mark_replay();
        }
    }

    fn take_command(&mut self, command: Command) {
        if std::mem::replace(&mut self.command, command) == command {
            return;
        }
        self.run.source.command_ended = matches!(command, Command::Ended(_));
        if let Command::Ended(status) = command {
            let recorded = self.run.diagnosis().aggregate().run.is_some();
            self.run.source.notice = Some(ended_notice(status, recorded));
        }
        if self.ui.overlay == Some(Overlay::Quit) {
            self.ui.overlay = None;
        }
        (self.news, self.redraw) = (true, true);
    }

    /// Whether nothing more will happen.
    pub fn is_over(&self, now: Duration) -> bool {
        let run_is_over = self.run.state(now).is_over();
        match self.command {
            Command::None => run_is_over,
            Command::Running => false,
            Command::Ended(_) => true,
        }
    }

    fn wants_drawing(&mut self, now: Duration) -> bool {
        let due = self.drawn_at.is_none_or(|at| now.saturating_sub(at) >= REFRESH);
        let state_changed = self.held.is_none() && self.run.state(now) != self.snapshot.header.state;
        let output_shown = self.ui.page == Page::Output;
        self.redraw || (due && (self.news || state_changed || output_shown))
    }

    /// Renews the picture, unless it is held.
    pub fn refresh(&mut self, world: &mut impl World) {
        let now = world.now();
        let changed = self.held.is_none() && (self.news || self.run.state(now) != self.snapshot.header.state);
        let (run, now_shown) = self.held.as_ref().map_or((&self.run, now), |held| (&held.run, held.now));
        if changed {
            self.snapshot = run.snapshot(now_shown);
        }
        self.detail = match &self.ui.page {
            Page::Layer(path) => {
                self.detail.take().filter(|d| d.path == *path && !changed).or_else(|| Some(run.layer(path)))
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
        let view = View {
            snapshot: &self.snapshot,
            detail: self.detail.as_ref(),
            ui: &self.ui,
            theme: self.theme,
            held: self.held.as_ref().map(|held| self.run.steps().saturating_sub(held.run.steps())),
            output: self.output.as_deref(),
        };
        self.ui.extent = view::draw(frame, &view);
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

    fn hold_or_go_on(&mut self, now: Duration) {
        self.held = match self.held {
            None => Some(Held { run: self.run.clone(), now }),
            Some(_) => None,
        };
        // What is held is what has been read up to now, not what was drawn last.
        self.snapshot = self.run.snapshot(now);
        (self.news, self.detail) = (true, None);
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
