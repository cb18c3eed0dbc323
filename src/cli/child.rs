//! Starting the command whose run is judged.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

/// The variable in which a probe finds its run directory.
const RUN_VARIABLE: &str = "AMPDOCTOR_RUN";

/// Time between two looks at whether the command has ended or a signal has come.
const POLL: Duration = Duration::from_millis(20);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its exit status was 0.
    Succeeded,
    /// Its exit status was another.
    Failed(i32),
    /// A signal ended it.
    Killed(i32),
}

impl Outcome {
    /// Whether its exit status was 0.
    pub fn succeeded(self) -> bool {
        self == Outcome::Succeeded
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Succeeded => f.write_str("the command succeeded"),
            Outcome::Failed(status) => write!(f, "the command failed with exit status {status}"),
            Outcome::Killed(signal) => write!(f, "the command was ended by signal {signal}"),
        }
    }
}

/// Runs `command` to its end, with our own standard input, output and error.
pub(super) fn run(command: &[OsString], run_dir: &Path) -> anyhow::Result<Outcome> {
    let (program, arguments) = command.split_first().context(NO_COMMAND)?;
    let signals = Signals::taken()?;
    let mut child = Command::new(program)
        .args(arguments)
        .env(RUN_VARIABLE, run_dir)
        .spawn()
        .map_err(|error| cannot_start(program, error))?;
    loop {
        if let Some(status) = child.try_wait().context("could not wait for the command")? {
            return Ok(outcome(status));
        }
        signals.pass_on(&child);
        std::thread::sleep(POLL);
    }
}

const NO_COMMAND: &str = "there is no command after `--`; name the program that trains, and its arguments";

/// Makes sure that there is a program to start, before anything is made or moved for its run.
pub(super) fn find(command: &[OsString]) -> anyhow::Result<()> {
    let program = command.first().filter(|program| !program.is_empty()).context(NO_COMMAND)?;
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut places = if program.to_string_lossy().contains('/') {
        vec![PathBuf::from(program)]
    } else {
        std::env::split_paths(&paths).map(|dir| dir.join(program)).collect()
    };
    places.retain(|place| place.exists());
    match (places.is_empty(), places.iter().any(|place| is_executable(place))) {
        (_, true) => Ok(()),
        (true, _) => Err(cannot_start(program, ErrorKind::NotFound.into())),
        (false, _) => Err(cannot_start(program, ErrorKind::PermissionDenied.into())),
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn cannot_start(program: &OsString, error: std::io::Error) -> anyhow::Error {
    let name = program.to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound if !name.contains('/') => {
            anyhow::anyhow!("there is no program of this name in PATH; for one in this directory, say ./{name}: {name}")
        }
        ErrorKind::NotFound => anyhow::anyhow!("there is no such program; was it built?: {name}"),
        ErrorKind::PermissionDenied => {
            anyhow::anyhow!("this cannot be run; is it a program, and is it executable?: {name}")
        }
        _ => anyhow::anyhow!("the command could not be started: {error}: {name}"),
    }
}

fn outcome(status: ExitStatus) -> Outcome {
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return Outcome::Killed(signal);
    }
    match status.code() {
        Some(0) => Outcome::Succeeded,
        Some(code) => Outcome::Failed(code),
        None => Outcome::Failed(-1),
    }
}

/// While this lives, a signal that asks to stop ends the command but not us: what it recorded is still judged.
///
/// A signal that was sent to us alone is passed on. Ctrl-C on a terminal reaches the command by itself, and a second one would tell
/// many trainers to stop at once. A signal that is ignored, as SIGHUP is under nohup, stays so for both.
struct Signals {
    taken: Vec<(rustix::process::Signal, Arc<AtomicBool>, signal_hook::SigId)>,
}

impl Signals {
    fn taken() -> anyhow::Result<Self> {
        use rustix::process::Signal;
        let ignored = ignored();
        let mut signals = Self { taken: Vec::new() };
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            if ignored >> (signal.as_raw() - 1) & 1 == 0 {
                let asked = Arc::new(AtomicBool::new(false));
                let id = signal_hook::flag::register(signal.as_raw(), Arc::clone(&asked));
                signals.taken.push((signal, asked, id.context("could not take over a signal")?));
            }
        }
        Ok(signals)
    }

    /// Passes on what was asked for. The command was not waited for yet, so its process id is still its own.
    fn pass_on(&self, child: &Child) {
        for (signal, asked, _) in &self.taken {
            let from_keyboard = || *signal == rustix::process::Signal::INT && in_foreground();
            if asked.swap(false, Ordering::Relaxed)
                && !from_keyboard()
                && let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed())
            {
                // The one error is that it has just ended, which is what was asked for.
                let _ = rustix::process::kill_process(pid, *signal);
            }
        }
    }
}

/// The signals that are ignored, a bit each, where the system tells.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether Ctrl-C on our terminal would be for us; without a terminal there is none.
fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|tty| rustix::termios::tcgetpgrp(tty) == Ok(rustix::process::getpgrp()))
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (.., id) in &self.taken {
            signal_hook::low_level::unregister(*id);
        }
    }
}
