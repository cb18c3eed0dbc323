//! Starting the command whose run is judged.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
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
    let (program, arguments) = command.split_first().context("there is no command after `--`")?;
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
    #[cfg(unix)]
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
/// Ctrl-C reaches the command from the terminal itself; what asks us alone to terminate is passed on.
struct Signals {
    terminate: Arc<AtomicBool>,
    #[cfg(unix)]
    ids: [signal_hook::SigId; 2],
}

impl Signals {
    #[cfg(unix)]
    fn taken() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let terminate = Arc::new(AtomicBool::new(false));
        let take = |signal, flag| signal_hook::flag::register(signal, flag).context("could not take over a signal");
        let ids = [take(SIGINT, Arc::new(AtomicBool::new(false)))?, take(SIGTERM, Arc::clone(&terminate))?];
        Ok(Self { terminate, ids })
    }

    #[cfg(not(unix))]
    fn taken() -> anyhow::Result<Self> {
        Ok(Self { terminate: Arc::new(AtomicBool::new(false)) })
    }

    /// Passes on a request to terminate. The command was not waited for yet, so its process id is still its own.
    fn pass_on(&self, child: &Child) {
        if self.terminate.swap(false, Ordering::Relaxed) {
            #[cfg(unix)]
            if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                // The one error is that it has just ended, which is what was asked for.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
    }
}

#[cfg(unix)]
impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids {
            signal_hook::low_level::unregister(id);
        }
    }
}
