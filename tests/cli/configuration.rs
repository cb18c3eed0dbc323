//! `ampdoctor.toml`: what it changes, what it does not, and what is wrong with it.

use std::fs;

use serde_json::Value;

use crate::{code, here, run, stderr, stdout};

#[test]
fn a_configuration_accepts_a_finding_and_every_report_says_so() {
    let here = here();
    let found = run(&here, &["report", "runs/sick", "--format", "json"]);
    let report: Value = serde_json::from_str(&stdout(&found)).unwrap();
    let code_found = report["findings"][0]["code"].as_str().unwrap().to_owned();
    let text = format!(
        "[rules.AMP301]\nskip-share = 0.5\n[[allow]]\ncode = \"{code_found}\"\nreason = \"It is being looked at.\"\n\
         [[allow]]\ncode = \"AMP408\"\nreason = \"Only the head is trained.\"\n"
    );
    fs::write(here.path().join("ampdoctor.toml"), text).unwrap();
    let output = run(&here, &["check", "runs/sick"]);
    let said = stdout(&output);
    assert_eq!(code(&output), 0, "{said}");
    assert!(said.contains("configuration ampdoctor.toml: scale-thrash skip-share = 0.5 (default 0.02)"), "{said}");
    assert!(said.contains("with 3 that follow: It is being") && said.contains("accepted in vain\n  AMP408"), "{said}");
    let output = run(&here, &["report", "runs/sick", "--format", "json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["accepted"][0]["finding"]["code"], code_found.as_str());
    assert_eq!(report["configuration"]["allow"][1]["used"], false);
    let lines = stdout(&run(&here, &["watch", "runs/sick", "--plain"]));
    assert!(lines.contains("accepted: ") && lines.contains("configuration ampdoctor.toml"), "{lines}");
    fs::write(here.path().join("none.toml"), "").unwrap();
    assert_eq!(code(&run(&here, &["check", "runs/sick", "--config", "none.toml"])), 1);
}

#[test]
fn a_configuration_that_is_wrong_is_told_with_its_line_before_anything_is_read() {
    let here = here();
    fs::write(here.path().join("ampdoctor.toml"), "[rules.AMP301]\nskip-shar = 0.5\n").unwrap();
    for command in ["check", "report", "watch"] {
        let output = run(&here, &[command, "runs/healthy"]);
        assert_eq!(code(&output), 2, "{command}");
        let said = stderr(&output);
        assert!(said.contains("Did you mean `skip-share`?") && said.contains("ampdoctor.toml:2"), "{said}");
    }
    let output = run(&here, &["check", "runs/healthy", "--config", "missing.toml"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("missing.toml"), "{}", stderr(&output));
}

#[test]
fn a_configuration_is_read_without_a_run() {
    let here = here();
    let output = run(&here, &["config"]);
    assert_eq!((code(&output), stdout(&output)), (2, String::new()), "there is none here");
    fs::write(here.path().join("ampdoctor.toml"), "[rules.AMP301]\nskip-share = 0.5\n[layers.fd2.AMP101]\nnear = 2\n")
        .unwrap();
    let output = run(&here, &["config"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    assert!(stdout(&output).contains("scale-thrash skip-share = 0.5 (default 0.02)"), "{}", stdout(&output));
    let said = stdout(&run(&here, &["check", "runs/healthy"]));
    assert!(said.contains("no layer of this run matches `fd2` of the configuration. Did you mean `fc2`?"), "{said}");
    fs::write(here.path().join("wrong.toml"), "[rules.AMP31]\n[rules.AMP301]\nskip-shar = 0.5\n").unwrap();
    let output = run(&here, &["config", "wrong.toml"]);
    assert_eq!((code(&output), stdout(&output)), (2, String::new()));
    assert!(
        stderr(&output).contains("wrong.toml:1") && stderr(&output).contains("wrong.toml:3"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn no_threshold_of_a_configuration_changes_what_if() {
    let here = here();
    let window = || stdout(&run(&here, &["whatif", "runs/healthy", "--format", "json"]));
    let before = window();
    let set =
        "[rules.gradient-underflow]\nmedian-near = 0.5\nlayer-harmed = 0.5\n[rules.gradient-headroom]\nheadroom = 12\n";
    fs::write(here.path().join("ampdoctor.toml"), set).unwrap();
    assert!(stdout(&run(&here, &["report", "runs/healthy"])).contains("gradient-underflow median-near = 0.5"));
    assert_eq!(window(), before);
    let named = run(&here, &["whatif", "runs/healthy", "--config", "ampdoctor.toml"]);
    assert_eq!(code(&named), 2);
    let help = stdout(&run(&here, &["whatif", "--help"]));
    assert!(help.contains("There is no --config: no threshold of a rule is used here."), "{help}");
}
