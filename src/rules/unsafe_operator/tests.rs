use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::silence::{diagnose, first};
use crate::rules::{Finding, Severity};
use crate::scan::Dtype::{F16, F32};

const INF: f64 = f64::INFINITY;

fn run(steps: u64, mut body: impl FnMut(&mut StepBuilder<'_>, u64)) -> Scenario {
    let mut run = Scenario::new();
    run.steps(steps, |s, i| {
        s.loss(1.0);
        body(s, i);
        s.gradient("head", "linear", F16, &normal(64, 1.0, i));
    });
    run
}

fn only(run: &Scenario) -> Finding {
    let d = diagnose(run);
    first(&d, "AMP106").cloned().unwrap_or_else(|| panic!("{:#?}", d.findings()))
}

fn is_silent(run: &Scenario) -> bool {
    first(&diagnose(run), "AMP106").is_none()
}

#[test]
fn case_17_an_fp16_sum_over_65520_ones_is_told_to_be_taken_in_fp32_and_not_told_twice() {
    let run = run(1, |s, _| {
        s.activation("head", "linear", F16, &vec![1.0; 65520]);
        s.activation("head", "sum", F16, &[INF]).from(&["head/linear"]);
    });
    let f = only(&run);
    assert_eq!((f.layer.as_str(), f.operator.as_str(), f.severity), ("head", "sum", Severity::Error));
    assert!(f.explanation.contains("of 65520 elements up to 1"), "{}", f.explanation);
    assert!(f.remedy.text.contains("`sum` of layer `head` in FP32"), "{}", f.remedy.text);
    assert!(first(&diagnose(&run), "AMP102").is_none());
}

#[test]
fn an_exponential_a_power_and_a_norm_that_overflow_are_found_and_a_product_is_not_this_rules() {
    for operator in ["exp", "pow", "norm", "linalg_vector_norm", "cumsum", "exp#2"] {
        let f = only(&run(1, |s, _| {
            s.activation("head", operator, F16, &[INF, 1.0]);
        }));
        assert_eq!(f.operator, operator);
    }
    let product = run(1, |s, _| {
        s.activation("head", "mul", F16, &[INF, 1.0]);
    });
    assert!(is_silent(&product) && first(&diagnose(&product), "AMP102").is_some());
}

#[test]
fn a_sigmoid_that_is_exactly_one_before_a_logarithm_is_to_blame_and_not_the_logarithm() {
    let f = only(&run(1, |s, _| {
        s.activation("head", "linear", F16, &[9.0, -1.0]);
        s.activation("head", "sigmoid", F16, &[1.0, 0.27]).from(&["head/linear"]);
        s.activation("head", "neg", F16, &[-1.0, -0.27]).from(&["head/sigmoid"]);
        s.activation("head", "add", F16, &[0.0, 0.73]).from(&["head/neg"]).argument(1.0);
        s.activation("head", "log", F16, &[-INF, -0.3]).from(&["head/add"]);
    }));
    assert_eq!((f.operator.as_str(), f.severity), ("sigmoid", Severity::Error));
    assert!(f.explanation.contains("exact 1"), "{}", f.explanation);
    assert!(f.remedy.text.contains("binary_cross_entropy_with_logits"), "{}", f.remedy.text);
}

#[test]
fn an_epsilon_that_fp16_rounds_to_zero_is_named() {
    let f = only(&run(1, |s, _| {
        s.activation("head", "softmax", F16, &[1.0, 0.0]);
        s.activation("head", "add", F16, &[1.0, 0.0]).from(&["head/softmax"]).argument(1e-8);
        s.activation("head", "log", F16, &[0.0, -INF]).from(&["head/add"]);
    }));
    assert!(f.explanation.contains("1.00e-8 that is added before it is 0 in FP16"), "{}", f.explanation);
}

#[test]
fn a_softmax_in_fp32_whose_zero_meets_a_logarithm_is_no_matter_of_fp16() {
    assert!(is_silent(&run(1, |s, _| {
        s.activation("head", "softmax", F32, &[1.0, 0.0]);
        s.activation("head", "log", F32, &[0.0, -INF]).from(&["head/softmax"]);
    })));
    assert!(is_silent(&run(1, |s, _| {
        s.activation("head", "relu", F16, &[1.0, 0.0])
            .activation("head", "log", F16, &[0.0, -INF])
            .from(&["head/relu"]);
    })));
}

#[test]
fn case_23_scores_of_300_cast_to_fp16_by_hand_before_a_softmax_are_found() {
    let cast = |deviation: f64, from| {
        run(3, move |s, i| {
            s.activation("attn", "linear", from, &normal(256, deviation, i));
            s.activation("attn", "to", F16, &normal(256, deviation, i)).from(&["attn/linear"]);
            s.activation("attn", "softmax", F16, &[0.01; 256]).from(&["attn/to"]);
        })
    };
    let f = only(&cast(100.0, F32));
    assert_eq!((f.layer.as_str(), f.operator.as_str(), f.severity), ("attn", "softmax", Severity::Warning));
    assert!(f.explanation.contains("rounds by up to"), "{}", f.explanation);
    assert!(is_silent(&cast(2.0, F32)), "small scores lose nothing");
    assert!(is_silent(&cast(100.0, F16)), "they were FP16 before");
}

#[test]
fn softmax_and_layer_norm_in_fp16_without_harm_are_no_fault() {
    assert!(is_silent(&run(5, |s, i| {
        s.activation("attn", "matmul", F16, &normal(256, 3.0, i));
        s.activation("attn", "masked_fill", F16, &[1.0, -INF]).from(&["attn/matmul"]);
        s.activation("attn", "softmax", F16, &[1.0, 0.0]).from(&["attn/masked_fill"]);
        s.activation("ln", "layer_norm", F16, &normal(256, 1.0, i)).activation("ln", "sum", F16, &[3.0]);
        s.activation("head", "log_softmax", F16, &normal(64, 4.0, i)).from(&["head/linear"]);
    })));
}
