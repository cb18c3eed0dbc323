//! ## What it finds
//!
//! A rank of a distributed run that stopped while the others went on, ended before them, or never recorded anything.
//!
//! ## Why it matters
//!
//! Ranks wait for one another at every step, so the run hangs or dies with the first that is gone; and of what the rank did after its last recorded step nothing is known. A
//! rank that never recorded is not judged at all: the others may be well while it is not.
//!
//! ## How it decides
//!
//! * **Warning**: the recording of a rank has no end, or ends in a panic, at least two steps (threshold `behind`) before that of another; and its process is known to have
//!   ended, or all others have ended, or it has been silent for ten seconds and eight of its own steps while another went on.
//! * **Warning**: the same, of a rank of this run that was over before another began, however many steps it took.
//! * **Warning**: a rank ended in order that many steps before another that ran beside it or after it.
//! * **Warning**: the launcher said how many ranks there are (`WORLD_SIZE`), and one of them has no recording, though another has ended or has run for half a minute.
//! * **Information**: a recording was over before that of another rank began, and is of an earlier run: the launcher told the two another number of ranks, or they began more
//!   than half a minute apart. It is held against nobody. Where they began within that time and the launcher told both the same number, the rank is of this run and died early,
//!   and is judged as above; where no launcher said anything, the finding says that it could be either.
//!
//! ## What to do
//!
//! Read what the rank printed last. `dmesg` names a process that was killed for its memory. Where only the recording stopped, standard error of that rank says why: a full
//! disk, a doctor that detached itself. A rank without a recording needs the same directory as the others (`AMPDOCTOR_RUN`) and its number (`RANK`).
//!
//! ## When it stays silent
//!
//! In a run of one rank. While ranks are only read one after the other. Where the number of ranks is not known, nobody is missed.

use super::ranks::{Company, Membership, OfRank, Peer, START_MS};
use super::text::{counted, said};
use super::{Evidence, Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::EndReason;

const NAME: &str = "rank-stopped";
/// Steps behind the furthest.
const BEHIND: Threshold = Threshold::new(
    NAME,
    "behind",
    2.0,
    "steps behind the rank that got furthest",
    "Ranks wait for each other at every step: one that goes on is at most one behind.",
);

/// A rank that is silent for longer than this, and for [`STEPS`] of its steps, does not only seem to stand because it was read before the others.
const SILENCE_MS: u64 = 10_000;
const STEPS: u64 = 8;

/// See the page of the rule.
pub struct RankStopped;

static INFO: RuleInfo = RuleInfo {
    code: "AMP802",
    name: NAME,
    severity: Severity::Warning,
    summary: "A rank stopped while the others went on, ended before them, or never recorded anything.",
    source: include_str!("rank_stopped.rs"),
};

impl Rule for RankStopped {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[BEHIND]
    }

    fn check(&self, _: &Aggregate, _: &Limits) -> Vec<Verdict> {
        Vec::new()
    }

    fn compare(&self, company: &Company<'_>, limits: &Limits) -> Vec<OfRank<Firing>> {
        let behind = limits.of(&BEHIND) as u64;
        let of = |peer: &Peer<'_>| {
            let found = match company.membership(peer) {
                Membership::Member => stopped(peer, company, behind),
                Membership::LeftOver => Some(left_over(peer)),
                Membership::Unclear => Some(unclear(peer)),
            };
            found.map(|item| OfRank { rank: peer.number, item })
        };
        company.peers.iter().filter_map(of).chain(missing(company)).collect()
    }
}

fn stopped(peer: &Peer<'_>, company: &Company<'_>, behind: u64) -> Option<Firing> {
    // Of a recording without a single record the report says so itself, and the verdict is unknown.
    peer.aggregate.run.as_ref()?;
    // One that was over before this one began did not go on after it.
    let met = company.present().filter(|other| !is_over_before(other, peer));
    let most = met.filter_map(Peer::step).max()?;
    // A rank that was killed before its first step is behind all others.
    let (step, taken) = peer.step().map_or((0, 0), |step| (step, step + 1));
    let end = peer.aggregate.end.as_ref().map(|end| end.reason);
    let early = company.over_before_ms(peer).filter(|_| matches!(end, None | Some(EndReason::Panicked)));
    if taken + behind > most + 1 && early.is_none() {
        return None;
    }
    let number = peer.number;
    let evidence = vec![counted("steps", taken), counted("steps_of_the_furthest_rank", most + 1)];
    let others = if most < taken { String::new() } else { format!(", and others went on to step {most}") };
    let explanation = match end {
        Some(EndReason::Finished | EndReason::Dropped) => {
            format!(
                "Rank {number} ended in order after {taken} steps{others}: what they did without it is another training."
            )
        }
        // That the doctor was gone, and training was not, is said by a rule of its own.
        Some(EndReason::Detached) => return None,
        Some(EndReason::Panicked) => format!("Rank {number} panicked after {taken} steps{others}."),
        None if is_silent(peer, company) => format!(
            "Rank {number} stopped recording after {taken} steps{others}: it hangs, it was killed, or it could not write any more."
        ),
        None => return None,
    };
    let early = early.map(|ms| died_early(ms, company.of_one_command)).unwrap_or_default();
    Some(firing(Severity::Warning, step, evidence, explanation + &early, WHAT_IT_PRINTED))
}

/// Whether the recording of one rank was over before that of the other began.
fn is_over_before(one: &Peer<'_>, other: &Peer<'_>) -> bool {
    matches!((one.time(), other.time()), (Some((_, ended)), Some((began, _))) if ended < began)
}

/// Of a rank that the others never met.
fn died_early(ms: u64, of_one_command: bool) -> String {
    let doubt = if of_one_command {
        ""
    } else {
        ", unless a run of as many ranks was started here less than 30 s before, and it is left from that"
    };
    format!(" It was over {} before the last of the others began: look at how it started{doubt}.", seconds(ms))
}

/// `0.4 s`, `12 s`.
fn seconds(ms: u64) -> String {
    let seconds = ms as f64 / 1e3;
    if seconds < 9.95 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// Whether a recording without an end does not only lag behind because it was read before the others.
fn is_silent(peer: &Peer<'_>, company: &Company<'_>) -> bool {
    let others = || company.present().filter(|other| other.number != peer.number);
    let alone = others().all(|other| other.aggregate.end.is_some());
    let latest = others().filter_map(Peer::time).map(|(_, latest)| latest).max().unwrap_or(0);
    let silent_ms = peer.time().map_or(0, |(_, last)| latest.saturating_sub(last));
    let instrument = &peer.aggregate.instrument;
    let step_ms = instrument.step_ns / 1_000_000 / instrument.steps.max(1);
    peer.process_ended || alone || silent_ms > SILENCE_MS.max(STEPS * step_ms)
}

fn left_over(peer: &Peer<'_>) -> Firing {
    let explanation = format!(
        "The recording of rank {} was over before those of other ranks began: it is left from an earlier run of this directory. What it holds counts in \
         nothing that is said here.",
        peer.number
    );
    firing(Severity::Info, 0, Vec::new(), explanation, OWN_DIRECTORY)
}

const OWN_DIRECTORY: &str = "Start each run in a directory of its own, or with `ampdoctor watch -- COMMAND`, which moves earlier recordings aside.";

fn unclear(peer: &Peer<'_>) -> Firing {
    let explanation = format!(
        "The recording of rank {} was over shortly before another rank began. It is of this run and died early, or it is left from a run that was started here shortly before: no \
         launcher said how many ranks there are, so that the recordings do not tell. It is held against none of the others.",
        peer.number
    );
    let remedy = format!(
        "{OWN_DIRECTORY} Set WORLD_SIZE, as launchers do, and ranks that died early are told from those of an earlier run."
    );
    firing(Severity::Info, 0, Vec::new(), explanation, &remedy)
}

fn missing(company: &Company<'_>) -> Vec<OfRank<Firing>> {
    let sizes = company.present().filter_map(Peer::world_size);
    let has_had_time = |peer: &Peer<'_>| {
        let ran_ms = peer.time().map_or(0, |(began, latest)| latest.saturating_sub(began));
        peer.process_ended || peer.aggregate.end.is_some() || ran_ms > START_MS
    };
    let Some(size) = sizes.max().filter(|_| company.whole && company.present().any(has_had_time)) else {
        return Vec::new();
    };
    let may_be_here =
        |peer: &Peer<'_>, rank: u32| peer.number == rank && company.membership(peer) != Membership::LeftOver;
    let recorded =
        |rank: &u32| company.peers.iter().any(|peer| may_be_here(peer, *rank)) || company.unreadable.contains(rank);
    let absent: Vec<u32> = (0..size).filter(|rank| !recorded(rank)).take(MOST_MISSING + 1).collect();
    let Some(&first) = absent.first() else { return Vec::new() };
    let more = if absent.len() > MOST_MISSING { ", ..." } else { "" };
    let list: Vec<String> = absent.iter().take(MOST_MISSING).map(u32::to_string).collect();
    let list = list.join(", ") + more;
    let explanation = format!(
        "The launcher said that there are {size} ranks, and {} recorded nothing here: rank {list}. Nothing is known of what they did.",
        if absent.len() == 1 { "one" } else { "some" }
    );
    let evidence = vec![counted("ranks", size.into()), said("missing", list)];
    let remedy = "Give every rank the same AMPDOCTOR_RUN, on a file system that all of them can write, and its number in RANK; read what the rank printed on standard \
                  error.";
    vec![OfRank { rank: first, item: firing(Severity::Warning, 0, evidence, explanation, remedy) }]
}

/// Ranks that are named; of a thousand that recorded elsewhere the first tell enough.
const MOST_MISSING: usize = 8;

const WHAT_IT_PRINTED: &str = "Read what this rank printed last; `dmesg` names a process that was killed for its memory. Where training went on and only its recording \
                               stopped, its standard error says why.";

fn firing(severity: Severity, since: u64, evidence: Vec<Evidence>, explanation: String, remedy: &str) -> Firing {
    Firing {
        severity,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since,
        strength: 0.0,
        evidence,
        explanation,
        remedy: Remedy { text: remedy.into(), ..Remedy::default() },
    }
}
