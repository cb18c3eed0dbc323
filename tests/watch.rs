//! `ampdoctor watch` as its user starts it, on recordings written by the real recorder.

#![cfg(feature = "cli")]

#[path = "common/scenario.rs"]
mod scenario;

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ampdoctor::observation::{EndReason, Record, RunInfo};
use ampdoctor::recording::Recorder;
use scenario::{Fault, records, run_info};

/// Writes a scenario to `run`, waiting `pause` before each step; without an end, as a killed run leaves it, where not `ended`.
fn write(run: &Path, fault: Fault, steps: u64, pause: Duration, ended: bool) {
    let info = RunInfo { pid: std::process::id(), ..run_info("demo") };
    write_as(run, &info, fault, steps, pause, ended);
}

fn write_as(run: &Path, info: &RunInfo, fault: Fault, steps: u64, pause: Duration, ended: bool) {
    let mut recorder = Recorder::create(run, info).expect("a recording");
    for record in records("demo", fault, steps, ended) {
        match record {
            Record::Site(_, site) => drop(recorder.intern(&site)),
            Record::Scaler(config) => recorder.scaler(config),
            Record::Step(step) => {
                std::thread::sleep(pause);
                while !recorder.step(step.clone()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Record::Run(_) | Record::Shadow(_) | Record::Note(_) | Record::Thinned(_) | Record::End(_) => {}
        }
    }
    recorder.finish(EndReason::Finished).expect("written");
    if !ended {
        cut_the_end(run);
    }
}

/// Takes the last bytes off, and with them the end record.
fn cut_the_end(run: &Path) {
    let file = run.join("rank-0.amprec");
    let length = fs::metadata(&file).expect("there").len();
    fs::OpenOptions::new().write(true).open(&file).and_then(|f| f.set_len(length - 8)).expect("cut");
}

fn watch(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ampdoctor"));
    command.arg("watch").args(arguments).env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    command.output().expect("ampdoctor starts")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[test]
fn an_ended_run_is_told_in_lines_and_is_no_failure() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("demo");
    write(&run, Fault::None, 80, Duration::ZERO, true);
    let output = watch(&[run.to_str().expect("a path")]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for part in ["demo: the run has ended", "step 79", "verdict: ", "recording: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
}

/// No process has this number.
const GONE: u32 = i32::MAX as u32;

/// A healthy run that was killed an hour ago: its process is gone and its recording has no end.
fn killed(run: &Path) {
    write_as(run, &RunInfo { pid: GONE, ..run_info("demo") }, Fault::None, 80, Duration::ZERO, false);
    let file = fs::OpenOptions::new().write(true).open(run.join("rank-0.amprec")).expect("recorded");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).expect("made old");
}

#[test]
fn no_view_calls_a_run_healthy_that_was_killed() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("demo");
    killed(&run);
    let run = run.to_str().expect("a path");
    let views: [&[&str]; 8] = [
        &["watch", run, "--plain"],
        &["watch", run, "--once", "--size", "80x24"],
        &["check", run],
        &["report", run],
        &["report", run, "--format", "brief"],
        &["report", run, "--format", "markdown"],
        &["report", run, "--format", "junit"],
        &["report", run, "--format", "json"],
    ];
    for view in views {
        let output = Command::new(env!("CARGO_BIN_EXE_ampdoctor")).args(view).env("LC_ALL", "C.UTF-8").output();
        let output = output.expect("ampdoctor starts");
        let text = text(&output);
        let expected =
            if view.contains(&"json") { "\"health\": \"unknown\"" } else { "could not tell: nothing was found in " };
        assert!(text.contains(expected) && !text.contains("healthy"), "{view:?}: {text}");
        assert_eq!(output.status.code(), Some(if view[0] == "check" { 3 } else { 0 }), "{view:?}");
        assert!(!text.contains("still goes on"), "{view:?}, and its process is gone: {text}");
    }
}

#[test]
fn a_command_is_watched_to_its_end_and_its_status_is_passed_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let (made, run) = (dir.path().join("made"), dir.path().join("run"));
    write(&made, Fault::Nan("conv2"), 80, Duration::ZERO, true);
    let script = format!("echo training; cp {}/rank-0.amprec \"$AMPDOCTOR_RUN\"; exit 5", made.display());
    let run = run.to_str().expect("a path");
    let output = watch(&["--run", run, "--", "sh", "-c", &script]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(5), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("conv2") && text.contains("fix: "), "{text}");
    assert!(!text.contains("training\n"), "{text}");
    assert_eq!(fs::read_to_string(Path::new(run).join("output.log")).expect("kept"), "training\n");
}

#[test]
fn an_output_without_end_does_not_fill_the_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let script = "i=0; while [ $i -lt 40 ]; do head -c 1000000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); sleep 0.05; done; echo end";
    let output = watch(&["--run", run.to_str().expect("a path"), "--", "sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output));
    let kept = fs::read(run.join("output.log")).expect("kept");
    assert!(kept.len() < 20_000_000 && kept.ends_with(b"x\nend\n"), "{} bytes of 40 MB", kept.len());
}

#[test]
fn several_ranks_are_told_apart() {
    let dir = tempfile::tempdir().expect("a folder");
    let (run, other) = (dir.path().join("run"), dir.path().join("other"));
    write(&run, Fault::None, 80, Duration::ZERO, true);
    write(&other, Fault::Nan("conv2"), 80, Duration::ZERO, true);
    fs::copy(other.join("rank-0.amprec"), run.join("rank-1.amprec")).expect("copied");
    let run = run.to_str().expect("a path");
    let lines = text(&watch(&[run]));
    assert!(
        lines.contains("demo rank 0: the run has ended") && lines.contains("rank 1: not finite at step 60"),
        "{lines}"
    );
    let frame = text(&watch(&[run, "--once"]));
    assert!(frame.contains("demo rank 1") && frame.contains("2 ranks  0 ok") && frame.contains("1 E worst"), "{frame}");
}

#[test]
fn the_run_of_a_second_doctor_is_not_passed_over_in_silence() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    write(&run, Fault::None, 80, Duration::ZERO, true);
    write(&run.join("process-7"), Fault::Nan("conv2"), 80, Duration::ZERO, true);
    let lines = text(&watch(&[run.to_str().expect("a path"), "--plain"]));
    assert!(lines.contains(&format!("not shown here: {}\n", run.join("process-7").display())), "{lines}");
}

#[test]
fn one_frame_is_printed_as_text() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("demo");
    write(&run, Fault::Underflow("block.0.attn.qk"), 120, Duration::ZERO, true);
    let output = watch(&[run.to_str().expect("a path"), "--once", "--size", "80x24"]);
    let text = text(&output);
    assert!(output.status.success());
    assert_eq!(text.lines().count(), 24);
    assert!(text.lines().all(|line| line.chars().count() <= 80));
    assert!(text.contains("replay, ended") && text.contains("2^-14") && text.contains("block.0.attn.qk"), "{text}");
    assert!(!text.contains('\x1b'));
}

#[test]
fn a_signal_stops_the_command_and_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let mut child = Command::new(env!("CARGO_BIN_EXE_ampdoctor"))
        .args(["watch", "--run", run.to_str().expect("a path"), "--", "sh", "-c", "echo $$; exec sleep 600"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ampdoctor starts");
    let pid = wait_for_line(&run.join("output.log"));
    let kill =
        |signal: &str, pid: &str| Command::new("kill").args([signal, pid]).output().expect("kill").status.success();
    assert!(kill("-TERM", &child.id().to_string()));
    let status = child.wait().expect("ended");
    assert_eq!(status.code(), Some(128 + 15));
    assert!(!kill("-0", &pid), "the command is still there");
}

#[test]
fn a_terminal_that_goes_away_ends_the_watching_and_not_the_command() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let (terminal, mut watch) =
        on_a_terminal(&["watch", "--run", run.to_str().expect("a path"), "--", "sh", "-c", SLEEPER]);
    let pid = wait_for_line(&run.join("output.log"));
    drop(terminal);
    let status = wait_for_end(&mut watch);
    let command_goes_on = Command::new("kill").args(["-KILL", &pid]).status().expect("kill").success();
    assert_eq!(status, Some(128 + 1));
    assert!(command_goes_on);
}

const SLEEPER: &str = "echo $$; exec sleep 60";

/// Starts ampdoctor on a terminal of its own, which goes away with the file that is returned. It is not the controlling terminal, so
/// that no signal tells of that.
fn on_a_terminal(arguments: &[&str]) -> (fs::File, Child) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("a terminal");
    let name = ptsname(&terminal, Vec::new()).expect("its name").into_string().expect("UTF-8");
    let end = fs::OpenOptions::new().read(true).write(true).custom_flags(OpenptFlags::NOCTTY.bits() as i32).open(name);
    let end = end.expect("the other end");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ampdoctor"));
    command
        .args(arguments)
        .stdin(end.try_clone().expect("a file"))
        .stderr(end.try_clone().expect("a file"))
        .stdout(end);
    (fs::File::from(terminal), command.spawn().expect("ampdoctor starts"))
}

/// The exit status, where it ends in time.
fn wait_for_end(watch: &mut Child) -> Option<i32> {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if let Some(status) = watch.try_wait().expect("waited for") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    watch.kill().expect("killed");
    None
}

fn wait_for_line(file: &Path) -> String {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some(line) = text.lines().next().filter(|_| text.ends_with('\n')) {
            return line.to_owned();
        }
        assert!(Instant::now() < until, "the command prints nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Records a run in real time, into `AMPDOCTOR_RUN`: something to look at without a trainer.
///
/// `ampdoctor watch -- cargo test --release --test watch -- --ignored --exact simulate`
#[test]
#[ignore = "records for half a minute, to look at in the dashboard"]
fn simulate() {
    let run = std::env::var_os("AMPDOCTOR_RUN").expect("AMPDOCTOR_RUN names the run directory");
    println!("a line of the trainer");
    let ended = std::env::var_os("AMPDOCTOR_SIMULATE_KILLED").is_none();
    write(Path::new(&run), Fault::Underflow("block.0.attn.qk"), 300, Duration::from_millis(100), ended);
}
