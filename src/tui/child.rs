//! The command that `watch` starts: in a process group of its own, its output in a file.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{self, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use super::world::Command;

/// The file in the run directory that holds what the command printed.
pub const OUTPUT: &str = "output.log";
/// The variable in which the command finds the run directory.
pub const RUN_VARIABLE: &str = "AMPDOCTOR_RUN";
/// How long a command may take to end when it is asked to, before it is killed.
pub const GRACE: Duration = Duration::from_secs(10);

/// The command that was started.
///
/// It writes its output straight to the file, so that it lives on when the dashboard is left; and it has a process group of its
/// own, so that stopping it stops what it started, and a Ctrl-C for the dashboard does not reach it.
pub struct Child {
    process: process::Child,
    status: Option<u8>,
}

impl Child {
    /// Creates the run directory and starts the command.
    pub fn start(command: &[OsString], run: &Path) -> anyhow::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            bail!("no command was given after `--`");
        };
        std::fs::create_dir_all(run)
            .with_context(|| format!("the run directory cannot be created: {}", run.display()))?;
        let run =
            std::path::absolute(run).with_context(|| format!("the run directory has no path: {}", run.display()))?;
        let output = run.join(OUTPUT);
        // Appended to, so that the command goes on at the end when the file is shortened.
        let file = OpenOptions::new().create(true).append(true).open(&output);
        let file = file.and_then(|file| file.set_len(0).map(|()| file));
        let file = file.with_context(|| format!("the command's output cannot be kept: {}", output.display()))?;
        let errors = file.try_clone().context("the command's output cannot be kept")?;
        let process = process::Command::new(program)
            .args(arguments)
            .env(RUN_VARIABLE, &run)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .inspect_err(|_| drop(std::fs::remove_file(&output)))
            .with_context(|| format!("the command cannot be started; is it spelled right?: {}", program.display()))?;
        Ok(Self { process, status: None })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it is doing.
    pub fn poll(&mut self) -> io::Result<Command> {
        if self.status.is_none() {
            self.status = self.process.try_wait()?.map(code);
        }
        Ok(self.status.map_or(Command::Running, Command::Ended))
    }

    /// Sends a signal to the command and what it started; one that has ended gets none.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.poll()? != Command::Running {
            return Ok(());
        }
        match Pid::from_raw(self.process.id() as i32).map(|group| kill_process_group(group, signal)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Asks it to end, kills it when it has not after [`GRACE`], and returns its exit status. `told` is called before the kill.
    pub fn stop(&mut self, signal: Signal, told: impl FnOnce()) -> io::Result<u8> {
        self.signal(signal)?;
        let until = Instant::now() + GRACE;
        while Instant::now() < until {
            if let Command::Ended(status) = self.poll()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        told();
        self.signal(Signal::KILL)?;
        let status = code(self.process.wait()?);
        self.status = Some(status);
        Ok(status)
    }
}

/// The exit status as a shell tells it: 128 + n where signal n ended the process.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_to_end(script: &str) -> (u8, Vec<String>) {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path().join("deep/run");
        let command: Vec<OsString> = ["sh", "-c", script].map(OsString::from).into();
        let mut child = Child::start(&command, &run).expect("sh starts");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Command::Ended(status) = child.poll().expect("waited for") {
                return (
                    status,
                    crate::tui::output::tail(&run.join(OUTPUT)).expect("readable").expect("output is kept"),
                );
            }
            assert!(Instant::now() < until, "the command does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn both_outputs_are_kept_and_the_status_is_passed_on() {
        let (status, lines) = run_to_end("echo one; echo two >&2; test -d \"$AMPDOCTOR_RUN\" && echo there; exit 7");
        assert_eq!(status, 7);
        assert_eq!(lines, ["one", "two", "there"]);
    }

    #[test]
    fn a_command_ended_by_a_signal_gives_128_and_its_number() {
        assert_eq!(run_to_end("kill -9 $$").0, 137);
    }

    #[test]
    fn stopping_a_command_stops_what_it_started() {
        let dir = tempfile::tempdir().expect("a folder");
        let marker = dir.path().join("alive");
        let script = format!("(sleep 1; touch {}) & wait", marker.display());
        let command: Vec<OsString> = ["sh", "-c", &script].map(OsString::from).into();
        let mut child = Child::start(&command, dir.path()).expect("sh starts");
        assert_eq!(child.stop(Signal::TERM, || panic!("no kill is needed")).expect("stopped"), 128 + 15);
        std::thread::sleep(Duration::from_millis(1300));
        assert!(!marker.exists());
    }

    #[test]
    fn a_command_that_does_not_exist_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = Child::start(&["no-such-program-here".into()], dir.path()).err().expect("an error");
        assert!(format!("{error:#}").contains("no-such-program-here"), "{error:#}");
    }
}
