//! The reader in docs/format.md reads what the crate writes: the format is told completely, by somebody who shares no code.

use std::fs;
use std::process::Command;

use ampdoctor::recording::recording_path;

use crate::sample::{encode, records};

fn program() -> String {
    let page = include_str!("../../docs/format.md");
    let (_, rest) = page.split_once("```python\n").expect("the page has a program");
    rest.split_once("```").expect("the program ends").0.into()
}

#[test]
fn the_reader_of_the_format_page_reads_a_recording() {
    if let Err(error) = Command::new("python3").arg("--version").output() {
        eprintln!("not checked: there is no python3 ({error})");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (reader, path) = (dir.path().join("reader.py"), recording_path(dir.path(), 0));
    fs::write(&reader, program()).expect("written");
    let (bytes, ends) = encode(&records());
    let run = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        let output = Command::new("python3").arg(&reader).arg(&path).output().expect("python3 runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let whole = "step 0 loss 2.5 scale 65536.0\n  fc subnormal 500 of 640\n\
                 step 1 loss 1.25 scale 65536.0\n  fc subnormal 500 of 640\n  head subnormal 500 of 640\n\
                 step 2 loss None scale None\nended after 3 steps\n";
    assert_eq!(run(&bytes), whole);
    assert_eq!(run(&bytes[..ends[3] + 20]), "step 0 loss 2.5 scale 65536.0\n  fc subnormal 500 of 640\n", "cut");
}
