//! What the trainer answers to what is typed.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Run, said, trainer};

#[test]
fn faults_are_listed_one_a_line_the_name_first() {
    let output = trainer("--list-faults").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names[..3], ["underflow", "overflow", "inflated-gradient"]);
    let different: std::collections::BTreeSet<_> = names.iter().collect();
    assert!(different.len() == names.len() && names.len() >= 20, "{names:?}");
}

#[test]
fn an_unknown_layer_is_answered_with_the_layers() {
    let output = trainer("--no-doctor --model conv --fault nan:conv9").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("its layers are conv1, bn1, conv2, bn2, fc1, fc2"), "{}", said(&output));
}

#[test]
fn a_layer_to_keep_in_fp32_that_does_not_exist_is_answered_with_the_nearest() {
    let output = trainer("--no-doctor --model conv --fp32-layers fc1,conv3").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("no layer \"conv3\" (did you mean \"conv1\"?); its layers are"),
        "{}",
        said(&output)
    );
}

#[test]
fn an_override_is_told() {
    let output = trainer("--no-doctor --steps 2 --precision bf16 --fault scale-low").output().unwrap();
    assert!(said(&output).contains("--precision fp16"), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"precision\":\"fp16\""));
}

#[test]
fn a_directory_that_cannot_be_written_does_not_end_the_training() {
    let output = trainer("--steps 3 --run /proc/no/such/run").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("ampdoctor"), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"run\":null"));
}

#[test]
fn a_killed_run_reads_to_its_last_whole_frame_and_has_no_end() {
    let run = Run::new();
    let mut child = trainer(&format!("--steps 1000000 --run {}", run.dir().display()))
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until_longer_than(&run.recording(), 50_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let (diagnosis, integrity) = run.diagnose();
    assert_eq!(integrity.end, None);
    assert!(diagnosis.aggregate().instrument.full_steps > 0);
    assert_eq!(integrity.damage_count, 0, "only the tail may be lost: {integrity:?}");
}

fn wait_until_longer_than(file: &Path, bytes: u64) {
    let began = Instant::now();
    while std::fs::metadata(file).map_or(0, |metadata| metadata.len()) <= bytes {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing was recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
}
