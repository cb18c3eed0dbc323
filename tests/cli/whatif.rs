//! `whatif`: other loss scales and formats.

use serde_json::Value;

use crate::{code, here, run, stderr, stdout};

#[test]
fn what_if_shows_the_window_for_people_and_for_machines() {
    let here = here();
    let output = run(&here, &["whatif", "runs/healthy"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let text = stdout(&output);
    assert!(text.starts_with("Loss scales: 2^") && text.contains("recommended"), "{text}");
    assert!(text.contains("Ehat, the predicted loss of direction") && text.contains("Which format"), "{text}");

    let output = run(&here, &["whatif", "runs/healthy", "--format", "json", "--layer", "fc2"]);
    let document: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert!(document["window"]["recommended"].is_i64(), "{document}");
    let layers = document["layers"].as_array().expect("layers");
    assert_eq!(layers.iter().map(|layer| &layer["layer"]).collect::<Vec<_>>(), ["fc2"]);
    let one = stdout(&run(&here, &["whatif", "runs/healthy", "--layer", "fc2"]));
    assert!(one.contains("Loss scales of the whole run: ") && !one.contains("Ehat, the predicted"), "{one}");
    let report: Value =
        serde_json::from_str(&stdout(&run(&here, &["report", "runs/healthy", "--format", "json"]))).expect("JSON");
    assert_eq!(report["whatif"]["window"], document["window"]);
}

#[test]
fn what_if_of_a_scale_or_a_layer_that_is_none_is_wrong_usage() {
    let here = here();
    let output = run(&here, &["whatif", "runs/healthy", "--scale", "much"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("as in 2^13 or 8192"), "{}", stderr(&output));
    let output = run(&here, &["whatif", "runs/healthy", "--layer", "fd2"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("no layer matches fd2. Did you mean fc2?"), "{}", stderr(&output));
}

#[test]
fn what_if_of_nothing_scanned_says_so() {
    let output = run(&here(), &["whatif", "runs/blind"]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("nothing can be said of loss scales"), "{}", stdout(&output));
}
