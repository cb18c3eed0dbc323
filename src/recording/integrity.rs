//! How much of a recording was there to be read.

use std::fmt;

use super::Flaw;
use crate::observation::End;

/// Damages kept in detail; beyond that they are only counted.
const KEPT: usize = 64;

/// A part of a recording that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first byte of it, counted from the start of the file.
    pub offset: u64,
    /// Bytes that were skipped; for [`Flaw::UndefinedSite`] those of the step's frame, which was kept without the site.
    pub bytes: u64,
    /// What is wrong.
    pub what: Flaw,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at byte {}: {}", self.bytes, self.offset, self.what)
    }
}

/// How much of a recording was there to be read: whether the run ended in order, and what is damaged or missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Integrity {
    /// Records read.
    pub records: u64,
    /// Records of a kind that this version does not know, skipped: a later ampdoctor wrote them.
    pub unknown_records: u64,
    /// The last record of a run that ended in order.
    pub end: Option<End>,
    /// The index of the last step read.
    pub last_step: Option<u64>,
    /// Bytes of a frame that is not whole, at the end: the run was cut there, or is still being written.
    pub tail_bytes: u64,
    /// All damages, the ones not kept included.
    pub damage_count: u64,
    /// Bytes skipped because of damage.
    pub damaged_bytes: u64,
    /// Observations left out, over all steps, because the definition of their site was lost.
    pub lost_observations: u64,
    damage: Vec<Damage>,
}

impl Integrity {
    /// The first damages, in the order of the file; at most 64 are kept.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Whether the run ended in order and every byte of its recording made sense.
    pub fn is_whole(&self) -> bool {
        self.end.is_some() && self.damage_count == 0 && self.tail_bytes == 0
    }

    /// Whether there is no end record: the run was killed, is still going on, or its disk was full.
    pub fn is_cut(&self) -> bool {
        self.end.is_none()
    }

    /// The damage found last goes on for `bytes` more.
    pub(super) fn extend_damage(&mut self, bytes: u64) {
        self.damaged_bytes += bytes;
        if self.damage_count == self.damage.len() as u64
            && let Some(last) = self.damage.last_mut()
        {
            last.bytes += bytes;
        }
    }

    pub(super) fn add(&mut self, damage: Damage) {
        self.damage_count += 1;
        if !matches!(damage.what, Flaw::UndefinedSite(_)) {
            self.damaged_bytes += damage.bytes;
        }
        if self.damage.len() < KEPT {
            self.damage.push(damage);
        }
    }
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.end, self.last_step) {
            (Some(end), _) => write!(f, "the run ended in order after {} steps", end.steps)?,
            (None, Some(step)) => {
                write!(
                    f,
                    "the recording stops after step {step} without an end: the run was killed, is still going on, or \
                     its disk was full"
                )?;
            }
            (None, None) => {
                write!(
                    f,
                    "the recording holds no step and no end: the run was killed, is still going on, or its disk was full"
                )?;
            }
        }
        if let Some(End { dropped_steps: n @ 1.., .. }) = self.end {
            write!(f, "; {n} steps were dropped because the disk was too slow")?;
        }
        if self.damage_count > 0 {
            let (n, bytes) = (self.damage_count, self.damaged_bytes);
            let s = if n == 1 { "" } else { "s" };
            write!(f, "; the file is damaged in {n} place{s}, {bytes} bytes were skipped")?;
        }
        if self.lost_observations > 0 {
            write!(f, "; {} observations were lost with the definition of their site", self.lost_observations)?;
        }
        if self.unknown_records > 0 {
            write!(f, "; {} records were written by a later ampdoctor and skipped", self.unknown_records)?;
        }
        Ok(())
    }
}
