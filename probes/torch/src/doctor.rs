//! [`Doctor`]: attached to a training loop with two lines.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use ampdoctor::observation::{Cost, EndReason, Note, NoteKind, RunInfo, Sampling, Step, Tier};
use ampdoctor::recording::Recorder;
use tch::nn::{VarStore, Variables};

use crate::events;
use crate::loss::Loss;
use crate::observer::{self, Observer, Session, StepTrace};
use crate::report::RunReport;
use crate::run_dir;
use crate::sampling::{Sampler, StepFacts};

/// Share of the step time that the probe may take where nothing else was asked for.
const DEFAULT_BUDGET: f64 = 0.02;

/// Watches a training run; see the crate's documentation for how to attach it.
///
/// It never changes the run: parameters, buffers, optimizer state and random numbers are the same, bit for bit, with and without
/// it. It never ends the run: what fails in it is said once on standard error and in the recording, and training goes on.
/// Dropping it ends the recording.
#[must_use = "a doctor that is dropped at once observes nothing"]
pub struct Doctor {
    active: Option<Active>,
}

/// How a [`Doctor`] watches, before it is attached.
#[derive(Clone, Debug)]
pub struct DoctorBuilder {
    run: Option<PathBuf>,
    sampling: Sampling,
    command: Option<Vec<String>>,
    rank: Option<u32>,
}

struct Active {
    session: Arc<Session>,
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
    foreign: bool,
}

impl Doctor {
    /// Attaches a doctor to all parameters and buffers of `vs`, with the default settings: the run directory is
    /// `$AMPDOCTOR_RUN`, or a new one under `ampdoctor-runs/`; full steps are spaced so that the probe takes at most 2 % of the time.
    ///
    /// Where it cannot (a read-only disk, another doctor on this thread), it says so on standard error and is inert.
    pub fn attach(vs: &VarStore) -> Self {
        Self::builder().attach(vs)
    }

    /// Settings other than the default ones.
    pub fn builder() -> DoctorBuilder {
        DoctorBuilder { run: None, sampling: Sampling::Budget(DEFAULT_BUDGET), command: None, rank: None }
    }

    /// Ends a step: everything observed since the last call belongs to it. Call it once an optimizer step, after the optimizer, with
    /// the loss as the loop has it (not the scaled one). Micro-batches of an accumulation belong to one step.
    ///
    /// The loss may be a tensor of one element, a number, or `()` where there is none.
    pub fn step(&mut self, loss: impl Loss) {
        let Some(active) = &mut self.active else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| active.step(loss.value())));
        if outcome.is_err() {
            active.session.fail("a panic while a step was recorded");
            active.detach();
        }
    }

    /// Says the learning rate in force; tch has no way to ask an optimizer for it.
    pub fn lr(&mut self, lr: f64) {
        if let Some(active) = &mut self.active {
            active.lr = Some(lr);
        }
    }

    /// Records a number of this step under a name, for instance `accuracy`.
    pub fn metric(&mut self, name: &str, value: f64) {
        if let Some(active) = &mut self.active {
            active.metrics.push((name.to_owned(), value));
        }
    }

    /// Whether it observes: false where attaching failed or the probe has detached itself.
    pub fn is_attached(&self) -> bool {
        self.active.as_ref().is_some_and(|active| !active.detached)
    }

    /// Where the recording lies, if there is one.
    pub fn recording(&self) -> Option<&Path> {
        self.active.as_ref().map(|active| active.recorder.path())
    }

    /// Ends the run and gives its report.
    pub fn finish(mut self) -> RunReport {
        self.active.take().map_or_else(RunReport::nothing, |active| active.finish(EndReason::Finished))
    }
}

impl Drop for Doctor {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() { EndReason::Panicked } else { EndReason::Dropped };
        if let Some(active) = self.active.take() {
            // A failure to write the last record has been said on standard error.
            let _ = catch_unwind(AssertUnwindSafe(|| active.finish(reason)));
        }
    }
}

impl DoctorBuilder {
    /// The run directory; it is created, and an earlier recording in it is moved aside. Wins over `AMPDOCTOR_RUN`.
    pub fn run(mut self, dir: impl Into<PathBuf>) -> Self {
        self.run = Some(dir.into());
        self
    }

    /// Scans every tensor at every `n`-th step, whatever it costs; 1 misses nothing. 0 is taken as 1.
    pub fn every(mut self, n: u64) -> Self {
        self.sampling = Sampling::Every(n.max(1));
        self
    }

    /// Spaces full steps so that the probe takes at most this share of the step time, for instance 0.02. What is no share between 0 and
    /// 1 leaves the default.
    pub fn budget(mut self, share: f64) -> Self {
        if share > 0.0 && share <= 1.0 {
            self.sampling = Sampling::Budget(share);
        } else {
            eprintln!("ampdoctor: a budget is a share of the step time between 0 and 1, not {share}; it stays at 2 %");
        }
        self
    }

    /// Scans nothing: only loss, loss scale and what our own scaler reports are recorded.
    pub fn off(mut self) -> Self {
        self.sampling = Sampling::Off;
        self
    }

    /// What the recording says was run, in place of this process's command line.
    pub fn command(mut self, command: Vec<String>) -> Self {
        self.command = Some(command);
        self
    }

    /// Rank within a distributed run, in place of `RANK` of the environment.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Attaches the doctor to one VarStore.
    pub fn attach(self, vs: &VarStore) -> Doctor {
        self.attach_all(&[vs])
    }

    /// Attaches one doctor to several VarStores; their parameters are named `store0.`, `store1.` and so on.
    pub fn attach_all(self, stores: &[&VarStore]) -> Doctor {
        let stores = stores.iter().map(|vs| vs.variables_.clone()).collect();
        let attached = catch_unwind(AssertUnwindSafe(|| self.activate(stores)))
            .unwrap_or_else(|_| Err("a panic while attaching".into()));
        match attached {
            Ok(active) => Doctor { active: Some(active) },
            Err(why) => {
                eprintln!("ampdoctor: not attached, training goes on without it: {why}");
                Doctor { active: None }
            }
        }
    }

    fn activate(self, stores: Vec<Arc<Mutex<Variables>>>) -> Result<Active, String> {
        if Observer::thread_is_observed() {
            return Err("another doctor is attached on this thread; give both VarStores to one with \
                        Doctor::builder().attach_all(&[&a, &b])"
                .into());
        }
        let sampler = Sampler::new(self.sampling);
        let session = Arc::new(Session::new(stores, sampler.first()));
        let dir = self.run.clone().map_or_else(run_dir::default_dir, Ok)?;
        let info = self.run_info(&session, &dir);
        let recorder = Recorder::create(&dir, &info).map_err(|e| e.to_string())?;
        let observer = Observer::install(&session).ok_or("LibTorch refused the observer")?;
        let listener: Weak<Session> = Arc::downgrade(&session);
        events::listen(listener);
        observer.enable(sampler.first());
        let now = Instant::now();
        Ok(Active {
            session,
            observer,
            recorder,
            sampler,
            sampling: self.sampling,
            began: now,
            step_began: now,
            index: 0,
            lr: None,
            metrics: Vec::new(),
            said: Vec::new(),
            contended: 0,
            detached: false,
            foreign: false,
        })
    }

    fn run_info(&self, session: &Session, dir: &Path) -> RunInfo {
        RunInfo {
            name: dir.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned()),
            command: self
                .command
                .clone()
                .unwrap_or_else(|| std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect()),
            started_unix_ms: run_dir::unix_ms(),
            pid: std::process::id(),
            rank: self.rank.unwrap_or_else(run_dir::rank),
            producer: concat!("ampdoctor-torch ", env!("CARGO_PKG_VERSION")).into(),
            framework: observer::framework(),
            device: session.device(),
            threads: u32::try_from(tch::get_num_threads()).unwrap_or(0),
            sampling: self.sampling,
            parameters: session.parameters(),
        }
    }
}

impl Active {
    fn step(&mut self, loss: Option<f64>) {
        let entered = Instant::now();
        self.observer.enable(false);
        if self.detached {
            return;
        }
        if self.session.failure().is_some() {
            return self.detach();
        }
        let index = self.index;
        let work = entered.duration_since(self.step_began);
        let Self { session, recorder, sampler, .. } = self;
        let mut full_next = false;
        let taken = session.take_step(
            |site| recorder.intern(site),
            |taken| {
                let alarming = taken.is_alarming() || loss.is_some_and(|l| !l.is_finite());
                let callbacks = taken.callback_ns;
                full_next = sampler.next(StepFacts {
                    index,
                    full: taken.full,
                    work_ns: (work.as_nanos() as u64).saturating_sub(callbacks),
                    probe_ns: callbacks + entered.elapsed().as_nanos() as u64,
                    alarming,
                });
                full_next
            },
        );
        let Some(taken) = taken else {
            self.session.fail("the observer's state is lost");
            return self.detach();
        };
        self.foreign = taken.foreign_scaler;
        self.record(taken, loss, entered);
        self.index += 1;
        self.observer.end_step();
        self.follow_thread();
        self.observer.enable(full_next || self.foreign && !matches!(self.sampling, Sampling::Off));
        self.step_began = Instant::now();
    }

    fn record(&mut self, taken: StepTrace, loss: Option<f64>, entered: Instant) {
        if let Some(config) = taken.scaler_config {
            self.recorder.scaler(config);
        }
        let blind: Vec<String> = taken.blind_spots.into_iter().filter(|spot| !self.said.contains(spot)).collect();
        for spot in blind {
            self.note(NoteKind::BlindSpot, spot.clone());
            self.said.push(spot);
        }
        let contended = self.session.contended();
        if contended > self.contended {
            self.contended = contended;
            self.note_once(
                NoteKind::BlindSpot,
                "operators ran on two threads at once; those of one of them were not observed",
            );
        }
        let tier = match (taken.full, taken.foreign_scaler) {
            (true, _) => Tier::Full,
            (false, true) => Tier::Light,
            (false, false) => Tier::Off,
        };
        let cost = Cost {
            step_ns: self.step_began.elapsed().as_nanos() as u64,
            probe_ns: taken.callback_ns + entered.elapsed().as_nanos() as u64,
            dropped_steps: self.recorder.dropped_steps(),
            unscanned: taken.unscanned,
        };
        let accepted = self.recorder.step(Step {
            index: self.index,
            time_ns: self.began.elapsed().as_nanos() as u64,
            tier,
            observations: taken.observations,
            loss,
            loss_scale: taken.loss_scale,
            scaler: taken.scaler,
            lr: self.lr,
            metrics: std::mem::take(&mut self.metrics),
            cost,
        });
        if !accepted {
            self.say_if_recording_failed();
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
        let Some(observer) = Observer::install(&self.session) else {
            return self.note_once(
                NoteKind::BlindSpot,
                "training moved to another thread, and LibTorch refused the observer there",
            );
        };
        self.observer = observer;
        let listener: Weak<Session> = Arc::downgrade(&self.session);
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
        self.recorder.note(Note { step: self.index, kind, text });
    }

    /// The probe failed: it says so, and observes nothing any more.
    fn detach(&mut self) {
        if self.detached {
            return;
        }
        self.detached = true;
        self.observer.enable(false);
        let why = self.session.failure().unwrap_or_else(|| "an unknown failure".into());
        eprintln!("ampdoctor: detached at step {}, training goes on without it: {why}", self.index);
        self.note(NoteKind::Detached, why);
    }

    fn finish(mut self, reason: EndReason) -> RunReport {
        self.observer.enable(false);
        if self.session.failure().is_some() {
            self.detach();
        }
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
