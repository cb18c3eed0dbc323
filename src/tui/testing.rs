//! A world for tests: a clock that only moves when it is waited on, a script of events, records in memory.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::app::{App, Exit};
use super::once;
use super::state::{Findings, Judge, Ranks, Run, Source};
use super::view::Theme;
use super::world::{Batch, Command, Event, World};
use crate::observation::{Probe, Record};
use crate::report::policy_text;
use crate::rules::{Diagnosis, Doubt, Evidence, Finding, Health, Severity, Value};

#[path = "../../tests/common/scenario.rs"]
pub mod scenario;

pub use scenario::{run_info, step};

/// What happens in a scripted world.
#[derive(Clone, Debug)]
pub enum Act {
    /// A key is pressed.
    Key(KeyCode),
    /// A key is pressed with Ctrl.
    Ctrl(char),
    /// A signal arrives.
    Signal(i32),
    /// This much time passes.
    Wait(Duration),
    /// Records are written.
    Write(Vec<Record>),
    /// Records are written by another rank.
    WriteRank(u32, Vec<Record>),
    /// The command that was started is doing this.
    Command(Command),
    /// The recording has this problem.
    Problem(&'static str),
}

/// A world that follows a script.
#[derive(Default)]
pub struct Script {
    /// The time.
    pub now: Duration,
    /// What will happen.
    pub acts: VecDeque<Act>,
    /// What was recorded and not read yet.
    pub batch: Batch,
    /// The same of other ranks.
    pub others: Vec<Batch>,
    /// What the command is doing.
    pub command: Command,
    /// What the command printed.
    pub printed: Option<Vec<String>>,
    /// What the rules are to find.
    pub findings: Vec<Finding>,
}

impl Script {
    /// A world in which these things happen, one at each look.
    pub fn new(acts: impl IntoIterator<Item = Act>) -> Self {
        Self { acts: acts.into_iter().collect(), ..Self::default() }
    }

    /// Adds records, to be read at the next look.
    pub fn write(&mut self, records: Vec<Record>) {
        self.batch.records.extend(records);
    }

    fn perform(&mut self, act: Act) -> Option<Event> {
        match act {
            Act::Key(code) => return Some(Event::Key(KeyEvent::new(code, KeyModifiers::NONE))),
            Act::Ctrl(c) => return Some(Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL))),
            Act::Signal(signal) => return Some(Event::Signal(signal)),
            Act::Wait(time) => self.now += time,
            Act::Write(records) => self.write(records),
            Act::WriteRank(rank, records) => self.others.push(Batch { rank, records, ..Batch::default() }),
            Act::Command(command) => self.command = command,
            Act::Problem(problem) => self.batch.problem = Some(problem.into()),
        }
        None
    }
}

impl World for Script {
    fn now(&self) -> Duration {
        self.now
    }

    /// When the script is over, the user quits; from a question too.
    fn event(&mut self, timeout: Duration) -> io::Result<Option<Event>> {
        self.now += timeout;
        match self.acts.pop_front() {
            Some(act) => Ok(self.perform(act)),
            None => Ok(Some(Event::Signal(END_OF_SCRIPT))),
        }
    }

    fn records(&mut self) -> Vec<Batch> {
        let problem = self.batch.problem.clone();
        let batch = std::mem::replace(&mut self.batch, Batch { problem, ..Batch::default() });
        // As from a directory in which there is no recording yet.
        let is_empty = batch.records.is_empty() && batch.problem.is_none();
        std::mem::take(&mut self.others).into_iter().chain((!is_empty).then_some(batch)).collect()
    }

    fn command(&mut self) -> io::Result<Command> {
        Ok(self.command)
    }

    fn output(&mut self) -> Option<Vec<String>> {
        self.printed.clone()
    }

    fn suspend(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The signal with which a script ends that nobody left before.
pub const END_OF_SCRIPT: i32 = 0;

/// A judge that finds these, whatever was read.
pub fn judge(found: Vec<Finding>) -> Judge {
    Rc::new(move |diagnosis: &Diagnosis| {
        let scanned = diagnosis.aggregate().instrument.full_steps > 0;
        let health = match (found.is_empty(), scanned) {
            (false, _) => Health::Findings,
            (true, true) => Health::Healthy,
            (true, false) => Health::Unknown,
        };
        let doubt = Doubt {
            code: "AMP301",
            name: "scale-thrash",
            reason: "20 bursts of skipped steps are needed to tell, 0 were seen".into(),
        };
        let doubts = if scanned { vec![doubt] } else { Vec::new() };
        let policy = policy_text(diagnosis.policy());
        Findings { health, found: found.clone(), doubts, accepted: diagnosis.accepted().to_vec(), policy }
    })
}

/// A dashboard of a run whose findings are given.
pub fn app(theme: Theme, findings: Vec<Finding>) -> App {
    let source = Source { place: "runs/demo".into(), ..Source::default() };
    App::new(Ranks::new(Run::judged_by(source, judge(findings))), theme, false)
}

/// Runs the dashboard through a script and returns its last screen and why it was left.
pub fn play(size: (u16, u16), theme: Theme, world: &mut Script) -> (String, Exit) {
    let mut app = app(theme, world.findings.clone());
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a test terminal cannot fail");
    let exit = app.show(&mut terminal, world).expect("nothing in a script fails");
    (once::text(terminal.backend().buffer()), exit)
}

/// The last screen of a script at this size.
pub fn screen(size: (u16, u16), findings: Vec<Finding>, acts: impl IntoIterator<Item = Act>) -> String {
    let mut world = Script { findings, ..Script::new(acts) };
    play(size, Theme::PLAIN, &mut world).0
}

/// Two findings of an underflow.
pub fn underflow() -> Vec<Finding> {
    let number = |name, value| Evidence { name, value: Value::Number(value) };
    let error = Finding {
        code: "AMP201",
        name: "gradient-underflow",
        severity: Severity::Error,
        layer: "block.0.attn.qk".into(),
        operator: "linear".into(),
        probe: Some(Probe::ActivationGrad),
        onset_step: 41,
        last_step: 119,
        evidence: vec![
            number("max_abs", 4.8e-6),
            number("subnormal_share", 1.0),
            number("loss_scale", 32768.0),
            Evidence { name: "scans", value: Value::Count(79) },
        ],
        explanation: "The gradient of block.0.attn.qk is at most 4.8e-6 as FP16 holds it (2^-17.7), below its smallest normal number \
                      2^-14; its direction is being lost (predicted 1 - cosine 0.02)."
            .into(),
        remedy: "Raise the loss scale from 2^15 to 2^20: at 2^20 none of this gradient is subnormal, and the largest gradient of \
                 the run keeps 3 bits of headroom."
            .into(),
        consequences: Vec::new(),
    };
    let warning = Finding {
        severity: Severity::Warning,
        layer: "conv1".into(),
        operator: String::new(),
        onset_step: 60,
        explanation: "Its largest gradient has been below 2^-14 for 40 scans.".into(),
        remedy: "Raise the loss scale to 2^18.".into(),
        ..error.clone()
    };
    vec![error, warning]
}
