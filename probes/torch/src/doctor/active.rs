//! A doctor at work: it ends each step, hands it to the recorder and says which step is watched next.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ampdoctor::observation::{Cost, EndReason, Note, NoteKind, Sampling, Shadow, ShadowGradient, Step, Tier};
use ampdoctor::recording::Recorder;

use tch::{Device, Tensor};

use super::losses::{Losses, StepLoss};
use crate::events::{self, Listener, Signal};
use crate::loss::Loss;
use crate::observer::{Attachment, Observer, StepTrace, Watching};
use crate::report::RunReport;
use crate::sampling::{Sampler, StepFacts};
use crate::shadow;

/// The first steps are never watched less closely than lightly: a loop that is put together wrongly is so from the beginning, and what two steps in a row
/// do to one another shows in no single one.
const FIRST_STEPS: u64 = 4;

/// A doctor at work.
pub(super) struct Active {
    attachment: Arc<Attachment>,
    observer: Observer,
    recorder: Recorder,
    sampler: Sampler,
    sampling: Sampling,
    began: Instant,
    step_began: Instant,
    index: u64,
    lr: Option<f64>,
    metrics: Vec<(String, f64)>,
    said: Vec<String>,
    contended: u64,
    detached: bool,
    /// How this step is watched.
    watching: Watching,
    /// Steps that wait for their losses.
    losses: Losses,
    /// A loss that was read late was not finite.
    alarmed: bool,
    /// Time that shadows took in this step.
    shadow_ns: u64,
    /// What the end of the last step took after its cost was written down: it is told with this one.
    carried_ns: u64,
}

impl Active {
    /// Begins the run; our own scaler is heard from here on.
    pub(super) fn new(
        attachment: Arc<Attachment>,
        observer: Observer,
        recorder: Recorder,
        sampler: Sampler,
        sampling: Sampling,
    ) -> Self {
        let listener: Weak<Attachment> = Arc::downgrade(&attachment);
        events::listen(listener);
        for masters in events::living_masters() {
            attachment.hear(&Signal::Masters(masters));
        }
        let full = sampler.first();
        observer.enable(full);
        let now = Instant::now();
        Self {
            attachment,
            observer,
            recorder,
            sampler,
            sampling,
            began: now,
            step_began: now,
            index: 0,
            lr: None,
            metrics: Vec::new(),
            said: Vec::new(),
            contended: 0,
            detached: false,
            watching: Watching { full, watched: full },
            losses: Losses::default(),
            alarmed: false,
            shadow_ns: 0,
            carried_ns: 0,
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        !self.detached
    }

    pub(super) fn recording(&self) -> &Path {
        self.recorder.path()
    }

    pub(super) fn lr(&mut self, lr: f64) {
        self.lr = Some(lr);
    }

    pub(super) fn restart_clock(&mut self) {
        self.step_began = Instant::now();
        self.carried_ns = 0;
    }

    pub(super) fn metric(&mut self, name: &str, value: f64) {
        self.metrics.push((name.to_owned(), value));
    }

    /// Ends observing for a reason that lies in the doctor itself.
    pub(super) fn give_up(&mut self, why: &str) {
        self.attachment.fail(why);
        self.detach();
    }

    /// Ends the step and begins the next.
    pub(super) fn step(&mut self, loss: &dyn Loss) {
        self.observer.enable(false);
        if self.detached {
            return;
        }
        let called = Instant::now();
        let is_on_device = loss.tensor().is_some_and(|tensor| tensor.device() != Device::Cpu);
        let loss = StepLoss::of(loss, self.watching.full);
        if let StepLoss::Known(_) = loss {
            self.settle();
        }
        // What a device still has to do is the training's work: it was waited for before the clock is read.
        let entered = if is_on_device { Instant::now() } else { called };
        if self.attachment.failure().is_some() {
            return self.detach();
        }
        let index = self.index;
        let lightly = !matches!(self.sampling, Sampling::Off);
        let work = entered.duration_since(self.step_began).saturating_sub(Duration::from_nanos(self.shadow_ns));
        let shim_ns = self.take_spent();
        let alarmed = std::mem::take(&mut self.alarmed) || loss.known().is_some_and(|l| !l.is_finite());
        let Self { attachment, recorder, sampler, .. } = self;
        let mut watching = Watching { full: false, watched: false };
        let taken = attachment.take_step(
            |site| recorder.intern(site),
            |taken| {
                let alarming = taken.is_alarming() || alarmed;
                let callbacks = shim_ns + taken.scaler_ns;
                let full = sampler.next(StepFacts {
                    index,
                    full: taken.full,
                    work_ns: (work.as_nanos() as u64).saturating_sub(callbacks),
                    probe_ns: callbacks + entered.elapsed().as_nanos() as u64,
                    alarming,
                });
                let watched = full || lightly && (taken.foreign_scaler || index + 1 < FIRST_STEPS);
                watching = Watching { full, watched };
                watching
            },
        );
        let Some(taken) = taken else {
            return self.give_up("the observer's state is lost");
        };
        self.step_began = self.record(taken, loss, entered, shim_ns);
        self.index += 1;
        self.observer.end_step();
        self.follow_thread();
        self.watching = watching;
        self.observer.enable(watching.watched);
        self.shadow_ns = 0;
        self.carried_ns = self.step_began.elapsed().as_nanos() as u64;
    }

    /// Nanoseconds spent in this step so far, outside of the call that ends it.
    fn take_spent(&mut self) -> u64 {
        self.observer.take_ns() + std::mem::take(&mut self.carried_ns)
    }

    /// Compares with FP32; whether that went well. The observer looks away: none of it belongs to the training.
    pub(super) fn shadow(&mut self, closure: &mut dyn FnMut() -> Tensor) -> bool {
        if self.detached {
            return false;
        }
        let began = Instant::now();
        self.observer.enable(false);
        let outcome = match self.attachment.for_shadow(self.index) {
            Some((originals, held)) => shadow::run(&originals, held, closure),
            None => Err("the VarStore is locked, or the observer's state is lost".into()),
        };
        let time_ns = began.elapsed().as_nanos() as u64;
        let went_well = self.record_shadow(outcome, time_ns);
        self.observer.enable(self.watching.watched);
        self.shadow_ns += began.elapsed().as_nanos() as u64;
        went_well
    }

    fn record_shadow(&mut self, outcome: Result<shadow::Outcome, String>, time_ns: u64) -> bool {
        let empty = Shadow { step: self.index, time_ns, ..Shadow::default() };
        let shadow = match outcome {
            Ok(found) => Shadow {
                loss_scale: found.loss_scale,
                loss: Some(found.loss),
                recomputed: found.recomputed,
                gradients: (found.pairs.into_iter())
                    .map(|p| ShadowGradient { site: self.recorder.intern(&p.site), likeness: p.likeness })
                    .collect(),
                ..empty
            },
            Err(why) => {
                if !self.said.contains(&why) {
                    eprintln!("ampdoctor: no comparison with FP32 at step {}, training goes on: {why}", self.index);
                    self.said.push(why.clone());
                }
                Shadow { failure: Some(why), ..empty }
            }
        };
        let went_well = shadow.failure.is_none();
        self.settle();
        self.recorder.shadow(shadow) && went_well
    }

    /// Records the step; until when its cost is in it.
    fn record(&mut self, taken: StepTrace, loss: StepLoss, entered: Instant, shim_ns: u64) -> Instant {
        if let Some(config) = taken.scaler_config {
            self.settle();
            self.recorder.scaler(config);
        }
        for spot in taken.blind_spots {
            self.note_once(NoteKind::BlindSpot, &spot);
        }
        let contended = self.attachment.contended();
        if contended > self.contended {
            self.contended = contended;
            self.note_once(
                NoteKind::BlindSpot,
                "operators ran on two threads at once; those of one of them were not observed",
            );
        }
        let tier = match (taken.full, taken.watched) {
            (true, _) => Tier::Full,
            (false, true) => Tier::Light,
            (false, false) => Tier::Off,
        };
        let ended = Instant::now();
        let cost = Cost {
            step_ns: (ended.duration_since(self.step_began).as_nanos() as u64).saturating_sub(self.shadow_ns),
            probe_ns: shim_ns + taken.scaler_ns + ended.duration_since(entered).as_nanos() as u64,
            dropped_steps: self.recorder.dropped_steps(),
            unscanned: taken.unscanned,
        };
        let step = Step {
            index: self.index,
            time_ns: self.began.elapsed().as_nanos() as u64,
            tier,
            observations: taken.observations,
            loss: loss.known(),
            loss_scale: taken.loss_scale,
            scaler: taken.scaler,
            recipe: taken.recipe,
            lr: self.lr,
            metrics: std::mem::take(&mut self.metrics),
            cost,
        };
        match loss {
            StepLoss::Known(_) => self.write(step),
            StepLoss::Later(kept) => {
                self.losses.hold(step, kept, ended);
                if self.losses.are_due(ended) {
                    self.settle();
                }
            }
        }
        ended
    }

    fn write(&mut self, step: Step) {
        if !self.recorder.step(step) {
            self.say_if_recording_failed();
        }
    }

    /// Records the steps that wait for their losses: before anything else that comes after them.
    fn settle(&mut self) {
        let (steps, failure) = self.losses.read();
        for step in steps {
            self.alarmed |= step.loss.is_some_and(|loss| !loss.is_finite());
            self.write(step);
        }
        if let Some(error) = failure {
            self.note_once(NoteKind::BlindSpot, &format!("losses that lay on a device could not be read: {error}"));
        }
    }

    /// A full or broken disk is told when it is met, once; `finish` returns it too.
    fn say_if_recording_failed(&mut self) {
        let Some(failure) = self.recorder.failure().map(ToString::to_string) else { return };
        if !self.said.contains(&failure) {
            eprintln!("ampdoctor: recording ended at step {}, training goes on: {failure}", self.index);
            self.said.push(failure);
        }
    }

    /// The observer watches one thread; a loop that has moved to another is followed.
    fn follow_thread(&mut self) {
        if self.observer.is_here() {
            return;
        }
        if Observer::thread_is_observed() {
            return self.note_once(NoteKind::BlindSpot, "training moved to a thread that another doctor observes");
        }
        let Some(observer) = Observer::install(&self.attachment) else {
            return self.note_once(
                NoteKind::BlindSpot,
                "training moved to another thread, and LibTorch refused the observer there",
            );
        };
        self.observer = observer;
        let listener: Weak<Attachment> = Arc::downgrade(&self.attachment);
        events::listen(listener);
        self.note_once(
            NoteKind::Information,
            "training moved to another thread, and the observer followed; the step before it was not observed",
        );
    }

    fn note_once(&mut self, kind: NoteKind, text: &str) {
        if !self.said.iter().any(|said| said == text) {
            self.said.push(text.to_owned());
            self.note(kind, text.to_owned());
        }
    }

    fn note(&mut self, kind: NoteKind, text: String) {
        self.settle();
        self.recorder.note(Note { step: self.index, kind, text });
    }

    /// The probe failed: it says so, and observes nothing any more.
    fn detach(&mut self) {
        if self.detached {
            return;
        }
        self.detached = true;
        self.observer.enable(false);
        let why = self.attachment.failure().unwrap_or_else(|| "an unknown failure".into());
        eprintln!("ampdoctor: detached at step {}, training goes on without it: {why}", self.index);
        self.note(NoteKind::Detached, why);
    }

    /// A loop that a scaler's error has ended never came to the end of its last step, and that is the step that tells why.
    fn record_unfinished_step(&mut self) {
        if self.detached || !self.attachment.was_refused() {
            return;
        }
        let (entered, shim_ns) = (Instant::now(), self.take_spent());
        let Self { attachment, recorder, .. } = self;
        let nothing = Watching { full: false, watched: false };
        let Some(taken) = attachment.take_step(|site| recorder.intern(site), |_| nothing) else { return };
        self.record(taken, StepLoss::Known(None), entered, shim_ns);
        self.index += 1;
    }

    /// Ends the run.
    pub(super) fn finish(mut self, reason: EndReason) -> RunReport {
        self.observer.enable(false);
        if self.attachment.failure().is_some() {
            self.detach();
        }
        self.settle();
        self.record_unfinished_step();
        let reason = if self.detached { EndReason::Detached } else { reason };
        let Self { recorder, observer, index, .. } = self;
        drop(observer);
        let dropped = recorder.dropped_steps();
        match recorder.finish(reason) {
            Ok(path) => RunReport::new(path, index, dropped),
            Err(error) => {
                eprintln!("ampdoctor: the recording is incomplete: {error}");
                RunReport::incomplete(index, dropped, error)
            }
        }
    }
}
