//! The report as JUnit XML, which CI services show as tests: a rule is a test, its findings are failures, and one that could not tell was skipped. So was one
//! whose findings all follow from another: they stand in the failure of their cause, and one fault is one failure.

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::brief::{verdict, within};
use super::{Layout, Rank, Run, consequence_text};
use crate::rules::{self, Finding, Health, OfRank, RuleInfo, Severity};

/// The report as JUnit XML: whether the run could be judged, and a suite for each rank with a test for each rule, failed where a warning or an error was
/// found. No times, so that the same recording gives the same bytes.
pub(super) fn junit(run: &Run<'_>) -> String {
    let name = run.ranks.iter().find_map(|rank| Some(rank.aggregate.run.as_ref()?.name.as_str())).unwrap_or("run");
    let mut report = Report::new(format!("ampdoctor {name}"));
    report.add_test_suite(judged(run));
    report.add_test_suites(run.ranks.iter().map(|rank| suite(rank, run)));
    report.add_test_suites(absent(run));
    // Text written to memory: there is nothing that can fail, and the crate leaves out characters that XML cannot hold.
    report.to_string().expect("a report is written to memory")
}

/// A run of which too little was seen is no run that passed.
fn judged(run: &Run<'_>) -> TestSuite {
    let status = match run.health() {
        Health::Unknown => {
            let unbroken = Layout { width: usize::MAX, colour: false };
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
            status.set_message(verdict(run, &unbroken, "the text report").trim_end());
            status
        }
        Health::Healthy | Health::Findings => TestCaseStatus::success(),
    };
    let mut suite = TestSuite::new("run");
    suite.add_test_case(case("the run could be judged", status));
    suite.add_test_cases(run.unreadable.iter().map(|error| {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(error.to_string());
        case("its recordings can be read", status)
    }));
    suite
}

fn case(name: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname("ampdoctor");
    case
}

fn suite(rank: &Rank<'_>, run: &Run<'_>) -> TestSuite {
    let mut suite = TestSuite::new(format!("rank {}", rank.number()));
    let beside: Vec<&Finding> = run.across().iter().filter(|of| of.rank == rank.number()).map(|of| &of.item).collect();
    for rule in rules::all() {
        let RuleInfo { code, name, .. } = *rule.info();
        let all = || rank.findings.iter().chain(beside.iter().copied());
        let found: Vec<&Finding> = all().filter(|of| of.code == code && of.severity > Severity::Info).collect();
        let cause = all().find(|of| of.consequences.iter().any(|of| of.code == code && of.severity > Severity::Info));
        let doubt = rank.doubts.iter().find(|doubt| doubt.code == code);
        let status = match (&found[..], cause, doubt) {
            ([], Some(cause), _) => skipped(&format!("follows from {} {}", cause.code, cause.name)),
            ([], None, Some(doubt)) => skipped(&doubt.reason),
            ([], None, None) => TestCaseStatus::success(),
            (found, ..) => failure(found),
        };
        suite.add_test_case(case(&format!("{code} {name}"), status));
    }
    suite
}

fn skipped(why: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::skipped();
    status.set_message(why);
    status
}

/// Ranks that recorded nothing: of them nothing is known but that.
fn absent(run: &Run<'_>) -> Vec<TestSuite> {
    let is_absent = |number: u32| run.ranks.iter().all(|rank| rank.number() != number);
    let found = run.across().iter().filter(|of| is_absent(of.rank) && of.item.severity > Severity::Info);
    let suite = |of: &OfRank<Finding>| {
        let mut suite = TestSuite::new(format!("rank {}", of.rank));
        suite.add_test_case(case(&format!("{} {}", of.item.code, of.item.name), failure(&[&of.item])));
        suite
    };
    found.map(suite).collect()
}

fn failure(found: &[&Finding]) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    let line = |finding: &&Finding| {
        format!("{}{}, since step {}", finding.severity.name(), within(finding), finding.onset_step)
    };
    let lines: Vec<String> = found.iter().map(line).collect();
    let told = |finding: &&Finding| {
        let settings = finding.remedy.settings().map_or(String::new(), |settings| format!("\nSettings: {settings}"));
        let follow = finding.consequences.iter().map(|of| format!("\nFollows from it: {}", consequence_text(of)));
        let follow: String = follow.collect();
        format!("{}\n{}\nChange: {}{settings}{follow}\n", line(finding), finding.explanation, finding.remedy.text)
    };
    let text: Vec<String> = found.iter().map(told).collect();
    status.set_message(lines.join("; "));
    status.set_description(text.join("\n"));
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::Scenario;
    use crate::observation::{End, EndReason, Record, RunInfo};
    use crate::report::fixture::Fixture;
    use crate::rules::Diagnosis;

    #[test]
    fn a_rule_is_a_test_and_a_doubt_skips_it() {
        let xml = junit(&Fixture::sick().three_ranks());
        assert_eq!(xml.matches("<testsuite ").count(), 3, "{xml}");
        for said in [
            r#"<testcase name="AMP101 activation-near-overflow" classname="ampdoctor"/>"#,
            r#"<skipped message="The learning rate is not known; call `doctor.lr`."/>"#,
            r#"<failure message="error in fc, operator linear, since step 1">"#,
            "Change: Keep the layer in FP32.",
            r#"<error message="#,
        ] {
            assert!(xml.contains(said), "{said}\n{xml}");
        }
        assert_eq!(xml, junit(&Fixture::sick().three_ranks()), "the same bytes");
    }

    #[test]
    fn what_ranks_show_only_beside_one_another_fails_the_rank_that_it_is_said_of() {
        let mut run = Scenario::new();
        run.steps(40, |s, _| {
            s.loss(1.0);
        });
        let diagnosis = |rank| {
            let mut diagnosis = Diagnosis::new();
            for record in run.records().iter().cloned() {
                diagnosis.apply(match record {
                    Record::Run(info) => Record::Run(RunInfo { rank, world_size: Some(3), ..info }),
                    other => other,
                });
            }
            let reason = EndReason::Finished;
            diagnosis.apply(Record::End(End { steps: 40, dropped_steps: 0, reason }));
            diagnosis
        };
        let ranks = [0, 2].map(diagnosis);
        let xml = junit(&Run::of(ranks.iter().map(Rank::of).collect(), &[]));
        let (_, absent) = xml.split_once(r#"<testsuite name="rank 1" tests="1""#).unwrap_or_else(|| panic!("{xml}"));
        assert!(absent.contains("AMP802 rank-stopped") && absent.contains("recorded nothing here: rank 1"), "{xml}");
    }

    #[test]
    fn what_follows_from_a_fault_stands_in_its_failure_and_fails_no_test_of_its_own() {
        let mut fixture = Fixture::sick();
        let root = fixture.findings.first().expect("it is sick").clone();
        let follower = Finding { code: "AMP702", name: "flat-loss", consequences: Vec::new(), ..root };
        fixture.findings[0].consequences = vec![follower];
        let xml = junit(&fixture.run());
        let (_, case) = xml.split_once(r#"<testcase name="AMP702 flat-loss""#).expect("a test of the rule");
        let (_, message) = case.split_once("<skipped message=\"").expect("marked");
        assert!(message.starts_with("follows from AMP"), "{xml}");
        assert!(xml.contains("Follows from it: AMP702 flat-loss in fc"), "{xml}");
    }

    #[test]
    fn a_run_that_could_not_be_judged_does_not_pass() {
        let xml = junit(&Run::empty());
        assert!(xml.contains(r#"tests="1" skipped="0" failures="0" errors="1""#), "{xml}");
        assert!(xml.contains(r#"<error message="could not tell: no step was recorded."#), "{xml}");
    }

    #[test]
    fn what_is_only_worth_knowing_fails_no_test() {
        let xml = junit(&Fixture::sick().run());
        assert!(xml.contains(r#"<testcase name="AMP303 scale-floor" classname="ampdoctor"/>"#), "{xml}");
    }
}
