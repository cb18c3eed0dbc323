//! Why a run in which nothing was found is not called healthy.

use super::{RunState, Snapshot};
use crate::observation::EndReason;
use crate::rules::Health;

impl Snapshot {
    /// The verdict on the run, as `ampdoctor check` has it: what comes after the last step of a run that did not end in order is not known, and nothing found
    /// up to there is then no health. Nor is it where a part of the recording is lost.
    pub fn health(&self) -> Health {
        match (self.findings.health, self.left_open()) {
            (Health::Healthy, Some(_)) => Health::Unknown,
            (health, _) => health,
        }
    }

    /// Whether a part of what was recorded cannot be read, of this rank or of another one: no waiting helps.
    pub fn is_blind(&self) -> bool {
        self.header.problem || self.ranks.iter().any(|rank| rank.state.tells_nothing())
    }

    /// What keeps a run from being called healthy though nothing was found, to stand behind "nothing was found, and"; `None` where it ended in order.
    pub fn left_open(&self) -> Option<&'static str> {
        match self.header.state {
            RunState::Unreadable => Some("the recording cannot be read"),
            RunState::Empty => Some("the recording is empty"),
            _ if self.header.problem => Some("a part of the recording could not be read"),
            _ if self.is_blind() => Some("a rank could not be read"),
            RunState::Waiting | RunState::Live => Some("the run goes on"),
            RunState::Stalled(_) => Some("the recording has no end: the run hangs, or was killed on another machine"),
            RunState::Killed => Some("the recording has no end: the run was killed, or its disk was full"),
            RunState::Ended(reason) | RunState::Replay(reason) => match reason {
                EndReason::Finished | EndReason::Dropped => None,
                EndReason::Panicked => Some("then the run ended in a panic"),
                EndReason::Detached => Some("then the probe failed and detached itself"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::aggregate::Aggregate;
    use crate::tui::state::{Findings, Header, Rates};

    /// A run in which the rules say this.
    fn snapshot(health: Health, state: RunState, problem: bool) -> Snapshot {
        let aggregate = Aggregate::default();
        let header = Header { problem, ..Header::new("r".into(), state, &aggregate, &Rates::default(), None) };
        let (found, doubts, accepted, policy) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Snapshot::new(&aggregate, Findings { health, found, doubts, accepted, policy }, header)
    }

    #[test]
    fn only_a_run_that_ended_in_order_and_was_read_whole_is_healthy() {
        let of = |state| snapshot(Health::Healthy, state, false).health();
        for reason in [EndReason::Finished, EndReason::Dropped] {
            assert_eq!([of(RunState::Ended(reason)), of(RunState::Replay(reason))], [Health::Healthy; 2]);
            assert_eq!(snapshot(Health::Healthy, RunState::Replay(reason), true).health(), Health::Unknown);
        }
        let open = [
            RunState::Waiting,
            RunState::Live,
            RunState::Stalled(Duration::from_secs(20)),
            RunState::Killed,
            RunState::Replay(EndReason::Panicked),
            RunState::Replay(EndReason::Detached),
        ];
        for state in open {
            assert_eq!(of(state), Health::Unknown, "{state:?}");
            assert_eq!(snapshot(Health::Findings, state, false).health(), Health::Findings, "{state:?}");
        }
    }
}
