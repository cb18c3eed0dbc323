//! The terminal, help, and the rules explained.

use std::process::Stdio;

use serde_json::Value;

use crate::{ampdoctor, code, here, run, stderr, stdout};

#[test]
fn a_closed_pipe_is_no_error() {
    let here = here();
    for arguments in
        [&["report", "runs/sick", "--format", "json"][..], &["rules"], &["--help"], &["check", "runs/healthy"]]
    {
        let mut child =
            ampdoctor(here.path(), arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{arguments:?}");
    }
}

#[test]
fn the_verdict_outlives_a_closed_pipe() {
    let here = here();
    let mut child = ampdoctor(here.path(), &["check", "runs/sick"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn what_is_no_terminal_gets_no_colours() {
    let output = run(&here(), &["check", "runs/sick"]);
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn a_pipe_is_as_wide_as_columns_says_or_80() {
    let here = here();
    for (columns, width) in [(None, 80), (Some("60"), 60)] {
        let mut command = ampdoctor(here.path(), &["check", "runs/sick"]);
        command.env_remove("COLUMNS");
        columns.map(|columns| command.env("COLUMNS", columns));
        let text = stdout(&command.output().unwrap());
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest > Some(width - 20) && longest <= Some(width), "{longest:?} of {width}:\n{text}");
    }
}

#[test]
fn wrong_usage_exits_2_with_a_hint() {
    let here = here();
    let cases = [
        (&["chekc", "x"][..], "check"),
        (&["report", "runs/healthy", "--format", "jsn"], "json"),
        (&["check", "runs/healthy", "--repot", "x"], "--report"),
        (&["runs/healthy"], "ampdoctor check runs/healthy"),
        (&["check"], "Usage: ampdoctor check [OPTIONS] RUN"),
        (&["check", "--config", "a.toml"], "`ampdoctor config FILE`"),
        (&["watch", "runs/healthy", "--once", "--size", "10x5"], "below 40x10"),
    ];
    for (arguments, hint) in cases {
        let output = run(&here, arguments);
        assert_eq!((code(&output), stdout(&output)), (2, String::new()), "{arguments:?}");
        assert!(stderr(&output).contains(hint), "{arguments:?}: {}", stderr(&output));
    }
    let unknown = stderr(&run(&here, &["check", "--foo", "runs/healthy"]));
    assert!(unknown.contains("--foo") && !unknown.contains("-- --foo"), "{unknown}");
}

#[test]
fn the_version_is_printed() {
    let output = run(&here(), &["--version"]);
    assert_eq!((code(&output), stdout(&output)), (0, format!("ampdoctor {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_rules_are_listed_for_people_and_for_machines() {
    let here = here();
    let listed: Value = serde_json::from_str(&stdout(&run(&here, &["rules", "--format", "json"]))).unwrap();
    let table = stdout(&run(&here, &["rules"]));
    assert_eq!(listed.as_array().unwrap().len(), ampdoctor::rules::all().len());
    for rule in listed.as_array().unwrap() {
        assert!(table.contains(&format!("{}  {}", rule["code"].as_str().unwrap(), rule["name"].as_str().unwrap())));
    }
}

#[test]
fn a_rule_is_explained_by_code_and_by_name() {
    let here = here();
    let by_code = run(&here, &["explain", "amp201"]);
    assert_eq!(code(&by_code), 0);
    assert!(stdout(&by_code).starts_with("AMP201 gradient-underflow\n"), "{}", stdout(&by_code));
    assert_eq!(by_code.stdout, run(&here, &["explain", "gradient-underflow"]).stdout);
}

#[test]
fn an_unknown_rule_exits_2_and_suggests_the_nearest() {
    let output = run(&here(), &["explain", "gradient-underlow"]);
    assert_eq!((code(&output), stdout(&output)), (2, String::new()));
    assert!(stderr(&output).contains("gradient-underflow"), "{}", stderr(&output));
}

#[test]
fn a_code_that_is_no_rule_names_its_family_and_no_neighbour() {
    let output = run(&here(), &["explain", "AMP103"]);
    assert_eq!(code(&output), 2);
    let said = stderr(&output);
    assert!(said.contains("no rule AMP103. Of its family there are AMP101 activation-near-overflow, AMP102"), "{said}");
    assert!(!said.contains("Did you mean"), "{said}");
}

#[test]
fn a_code_without_a_family_suggests_no_neighbour_of_another() {
    let output = run(&here(), &["explain", "AMP999"]);
    let said = stderr(&output);
    assert!(code(&output) == 2 && said.contains("`ampdoctor rules` lists them all"), "{said}");
    assert!(!said.contains("Did you mean"), "{said}");
}

#[test]
fn a_configuration_that_nobody_named_and_is_not_there_is_no_option_to_leave_out() {
    let empty = tempfile::tempdir().expect("a folder");
    let output = run(&empty, &["config"]);
    let said = stderr(&output);
    assert!(code(&output) == 2 && said.contains("there is no ampdoctor.toml here"), "{said}");
    assert!(!said.contains("--config"), "{said}");
}
