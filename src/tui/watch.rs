//! From what was asked for to an exit status.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT};

use super::app::{App, Exit};
use super::child::{Child, GRACE, OUTPUT};
use super::feed::Feed;
use super::live::Live;
use super::output::{LIMIT, Output};
use super::plain::{Plain, closed_pipe};
use super::state::{Ranks, Run, Source};
use super::terminal::{Input, Screen, Signals, has_hung_up};
use super::view::Theme;
use super::world::{Command, World};
use super::{WatchOptions, WatchOutcome, WatchTarget, lines, once};
use crate::recording::{ReadError, Records, rank_files, runs_within};
use crate::report::Layout;

/// Watches a run until its user leaves, or until it ends where nobody can press a key.
///
/// Draws the dashboard where standard output is a terminal, and plain lines where it is not. At the end it prints the findings and
/// where the recording and the command's output lie.
pub fn watch(options: WatchOptions) -> anyhow::Result<WatchOutcome> {
    let on_terminal = io::stdout().is_terminal();
    let dashboard = !options.plain && on_terminal && io::stdin().is_terminal();
    let signals = Signals::listen().context("signals cannot be listened to")?;
    let input = if dashboard && options.once.is_none() { Input::Terminal } else { Input::Signals };
    let mut world = open(&options.target, signals, input)?;
    let source = Source { place: place(&options.target), policy: options.policy, ..Source::default() };
    if let Some(size) = options.once {
        if let WatchTarget::Run(run) = &options.target {
            can_be_read(run)?;
        }
        return print_once(source, &mut world, size);
    }
    let (exit, ranks) = if dashboard {
        show(source, &mut world, options.exit_at_end)?
    } else {
        let mut plain = Plain::new(source);
        let exit = plain.tell(&mut world, &mut io::stdout().lock());
        world.signals.leave();
        let exit = match exit {
            Err(error) if on_terminal && is_refused(&error) => Exit::Signal(SIGHUP),
            exit => exit?,
        };
        (exit, plain.into_ranks())
    };
    leave(exit, &ranks, &mut world)
}

fn open(target: &WatchTarget, signals: Signals, input: Input) -> anyhow::Result<Live> {
    let (feed, child, run) = match target {
        WatchTarget::Run(run) => (Feed::new(run), None, run),
        WatchTarget::Command { command, run } => (Feed::of_a_new_run(run), Some(Child::start(command, run)?), run),
    };
    Ok(Live { feed, child, output: Output::at(directory(run).join(OUTPUT)), signals, input, start: Instant::now() })
}

/// Whether there is a recording that can be read now.
fn can_be_read(run: &Path) -> Result<(), ReadError> {
    if let Some(file) = rank_files(run)?.first() {
        Records::open(file)?.next().transpose()?;
    }
    Ok(())
}

/// The run directory of a path that may name a recording in it.
fn directory(run: &Path) -> PathBuf {
    match run.parent() {
        Some(parent) if run.extension().is_some_and(|e| e == "amprec") => parent.into(),
        _ => run.into(),
    }
}

fn place(target: &WatchTarget) -> String {
    match target {
        WatchTarget::Run(run) | WatchTarget::Command { run, .. } => run.display().to_string(),
    }
}

fn show(source: Source, world: &mut Live, exit_at_end: bool) -> anyhow::Result<(Exit, Ranks)> {
    let mut app = App::new(Ranks::new(Run::new(source)), theme(), exit_at_end);
    let mut screen = match Screen::take() {
        // It may go away before it is taken over, too.
        Err(_) if has_hung_up(Duration::ZERO).unwrap_or(false) => {
            world.signals.leave();
            return Ok((Exit::Signal(SIGHUP), app.into_ranks()));
        }
        taken => taken.context("the terminal cannot be taken over; --plain prints lines instead")?,
    };
    let mut exit = app.show(&mut *screen.terminal, world);
    world.signals.leave();
    drop(screen);
    // The terminal that has gone away takes no picture either: the cause is told, not the symptom.
    if exit.is_err() && has_hung_up(Duration::ZERO).unwrap_or(false) {
        exit = Ok(Exit::Signal(SIGHUP));
    }
    Ok((exit.with_context(|| still_running(world))?, app.into_ranks()))
}

/// What becomes of the command when the dashboard fails: it is not to blame and goes on.
fn still_running(world: &Live) -> String {
    match &world.child {
        Some(child) => format!("the dashboard failed; the command goes on as process {}", child.id()),
        None => "the dashboard failed".into(),
    }
}

/// Whether the locale of this process shows characters outside ASCII.
pub fn shows_unicode() -> bool {
    theme().unicode
}

fn theme() -> Theme {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let locale: Option<OsString> = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    Theme::from_variables(env::var_os("NO_COLOR").as_deref(), env::var_os("TERM").as_deref(), locale.as_deref())
}

fn print_once(source: Source, world: &mut Live, size: (u16, u16)) -> anyhow::Result<WatchOutcome> {
    let mut app = App::new(Ranks::new(Run::new(source)), Theme { unicode: theme().unicode, ..Theme::PLAIN }, false);
    app.read_all(world)?;
    let frame = once::frame(&mut app, size);
    io::stdout().lock().write_all(frame.as_bytes()).or_else(closed_pipe)?;
    Ok(WatchOutcome::OK)
}

/// Prints what there is to say at the end, sees to the command, and gives the exit status.
fn leave(exit: Exit, ranks: &Ranks, world: &mut Live) -> anyhow::Result<WatchOutcome> {
    let told = print_end(ranks, world).or_else(closed_pipe);
    if exit != Exit::Signal(SIGHUP) {
        told?;
    }
    let code = match exit {
        Exit::Quit => match world.command()? {
            Command::Ended(status) => status,
            Command::None | Command::Running => 0,
        },
        Exit::LeaveRunning => {
            say_that_it_goes_on(ranks, world)?;
            0
        }
        // The terminal was closed or the connection lost: no reason to lose hours of training with it.
        Exit::Signal(SIGHUP) => {
            if world.command()? == Command::Running {
                say_that_it_goes_on(ranks, world)?;
            }
            128 + SIGHUP as u8
        }
        Exit::Stop => stop(world, Signal::TERM)?,
        Exit::Signal(signal) => {
            let passed_on = if signal == SIGINT { Signal::INT } else { Signal::TERM };
            stop(world, passed_on)?;
            128 + u8::try_from(signal).unwrap_or(0)
        }
    };
    Ok(WatchOutcome { code })
}

fn say_that_it_goes_on(ranks: &Ranks, world: &Live) -> io::Result<()> {
    let pid = world.child.as_ref().map_or(0, Child::id);
    let (place, limit) = (&ranks.run(None).source.place, LIMIT >> 20);
    say(&format!("the command goes on as process {pid}; to see it again: ampdoctor watch {place}"))?;
    say(&format!("its output is no longer kept below {limit} MB: {}", world.output.path.display()))
}

/// What a write to a terminal that has gone away fails with.
fn is_refused(error: &anyhow::Error) -> bool {
    let number = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    number == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Stops the command, where there is one and it runs, and says so.
fn stop(world: &mut Live, signal: Signal) -> anyhow::Result<u8> {
    let Some(child) = &mut world.child else { return Ok(0) };
    if child.poll()? == Command::Running {
        say(&format!("stopping the command, process {}", child.id()))?;
    }
    let killed = || drop(say(&format!("it did not end within {} s: killing it", GRACE.as_secs())));
    child.stop(signal, killed).context("the command cannot be stopped")
}

/// A line on standard error; one that nobody can read any more is no error.
fn say(line: &str) -> io::Result<()> {
    match writeln!(io::stderr(), "{line}") {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::Other) => Ok(()),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(()),
        told => told,
    }
}

/// The runs that other processes of the same rank made within the one that was watched.
fn others(feed: &Feed) -> Vec<PathBuf> {
    let run = feed.files().first().and_then(|file| file.parent());
    run.map(runs_within).unwrap_or_default()
}

fn print_end(ranks: &Ranks, world: &Live) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let columns = io::stdout().is_terminal().then(crossterm::terminal::size).and_then(Result::ok);
    let width = columns.map_or(usize::MAX, |(columns, _)| usize::from(columns).max(Layout::MIN_WIDTH));
    for line in lines::summary(ranks, world.now()) {
        write!(out, "{}", lines::broken(&line, width))?;
    }
    for file in world.feed.files() {
        writeln!(out, "recording: {}", file.display())?;
    }
    for other in others(&world.feed) {
        writeln!(out, "recorded beside it by another process or doctor, and not shown here: {}", other.display())?;
    }
    if world.child.is_some() {
        writeln!(out, "output of the command: {}", world.output.path.display())?;
        if let Some(problem) = &world.output.problem {
            writeln!(out, "note: {problem}")?;
        }
    }
    out.flush()
}
