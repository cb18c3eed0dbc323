//! How a doctor watches, and attaching it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ampdoctor::observation::{Note, NoteKind, RunInfo, Sampling};
use ampdoctor::recording::{Recorder, WriteError, own_run_dir};
use tch::Tensor;
use tch::nn::{VarStore, Variables};

use super::{Active, Doctor};
use crate::environment;
use crate::launcher::Place;
use crate::observer::{self, Attachment, Observer};
use crate::run_dir;
use crate::sampling::Sampler;

/// Share of the step time that the probe may take where nothing else was asked for.
const DEFAULT_BUDGET: f64 = 0.02;

/// Told by one of several ranks that were given no directory in common.
const APART: &str = "this is one of several ranks, and AMPDOCTOR_RUN is not set: each records into a directory of its own. Set it to one for all, and they \
                     are shown side by side and held against one another";

/// How a [`Doctor`] watches, before it is attached.
///
/// What is not set here, `AMPDOCTOR_RUN`, `AMPDOCTOR_SAMPLING` (`every:1`, `budget:0.05`, `off`) and `AMPDOCTOR_LIMIT` (`64M`) of the environment may set; `AMPDOCTOR=off` leaves the
/// doctor out whatever is set.
#[derive(Clone, Debug, Default)]
pub struct DoctorBuilder {
    run: Option<PathBuf>,
    /// Where the program has said something of it.
    sampling: Option<Sampling>,
    command: Option<Vec<String>>,
    rank: Option<u32>,
    /// Where the program has said something of it: `Some(None)` lets the recording grow.
    limit: Option<Option<u64>>,
}

impl DoctorBuilder {
    /// The run directory; it is created, and an earlier recording in it is moved aside. Wins over `AMPDOCTOR_RUN`.
    pub fn run(mut self, dir: impl Into<PathBuf>) -> Self {
        self.run = Some(dir.into());
        self
    }

    /// Scans every tensor at every `n`-th step, whatever it costs; 1 misses nothing. 0 is taken as 1.
    pub fn every(mut self, n: u64) -> Self {
        self.sampling = Some(Sampling::Every(n.max(1)));
        self
    }

    /// Spaces full steps so that the probe takes at most this share of the step time, for instance 0.02. What is no share between 0 and
    /// 1 leaves the default.
    pub fn budget(mut self, share: f64) -> Self {
        if environment::is_share(share) {
            self.sampling = Some(Sampling::Budget(share));
        } else {
            eprintln!("ampdoctor: a budget is a share of the step time between 0 and 1, not {share}; it stays at 2 %");
        }
        self
    }

    /// Scans nothing: only loss, loss scale and what our own scaler reports are recorded.
    pub fn off(mut self) -> Self {
        self.sampling = Some(Sampling::Off);
        self
    }

    /// What the recording says was run, in place of this process's command line.
    pub fn command(mut self, command: Vec<String>) -> Self {
        self.command = Some(command);
        self
    }

    /// Rank within a distributed run, in place of what the launcher says (`RANK`, `OMPI_COMM_WORLD_RANK`, `PMI_RANK`, `SLURM_PROCID`).
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Keeps the recording below this many bytes, in place of `AMPDOCTOR_LIMIT` or 256 MiB; at least 64 KiB. Near it, older steps are thinned evenly over the run, and steps with an
    /// event stay; the report says what is left. `u64::MAX` lets it grow.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some((bytes < u64::MAX).then_some(bytes));
        self
    }

    /// Attaches the doctor to one VarStore.
    pub fn attach(self, vs: &VarStore) -> Doctor {
        self.attach_all(&[vs])
    }

    /// Attaches one doctor to several VarStores; their parameters are named `store0.`, `store1.` and so on.
    ///
    /// FP32 copies of a model need no store of their own here: [`MasterWeights`](crate::MasterWeights) tells the doctor of them, and they are seen under the
    /// model's names, in FP32.
    pub fn attach_all(self, stores: &[&VarStore]) -> Doctor {
        if environment::is_off() {
            return Doctor { active: None };
        }
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

    /// Attaches the doctor to plain tensors, which are in no VarStore, under the names given: `fc1.weight` is the weight of layer `fc1`.
    ///
    /// Those that require a gradient now are the parameters, the others are buffers. A tensor is followed as long as it is changed in place; one that
    /// takes its place (`w = w - grad * lr`) is another tensor.
    pub fn attach_tensors(self, tensors: &[(&str, &Tensor)]) -> Doctor {
        let vs = VarStore::new(tensors.first().map_or(tch::Device::Cpu, |(_, tensor)| tensor.device()));
        for (name, tensor) in tensors {
            let mut parts: Vec<&str> = name.split('.').collect();
            let own = parts.pop().unwrap_or_default();
            let layer = parts.into_iter().fold(vs.root(), |path, part| path / part);
            let _ = layer.add(own, tensor.shallow_clone(), tensor.requires_grad());
        }
        self.attach(&vs)
    }

    fn activate(self, stores: Vec<Arc<Mutex<Variables>>>) -> Result<Active, String> {
        if Observer::thread_is_observed() {
            return Err("another doctor is attached on this thread; give both VarStores to one with \
                        Doctor::builder().attach_all(&[&a, &b])"
                .into());
        }
        let sampling = self.sampling.or_else(environment::sampling).unwrap_or(Sampling::Budget(DEFAULT_BUDGET));
        let sampler = Sampler::new(sampling);
        let attachment = Arc::new(Attachment::new(stores, sampler.first()));
        let place = self.rank.map_or_else(Place::of_environment, Place::given);
        if self.run.is_none() && place.rank == 0 && place.world_size > Some(1) && !run_dir::is_named() {
            eprintln!("ampdoctor: {APART}");
        }
        let dir = self.run.clone().map_or_else(run_dir::default_dir, Ok)?;
        let info = self.run_info(&attachment, &dir, sampling, &place);
        let limit = self.limit.unwrap_or_else(environment::limit);
        let (mut recorder, moved) = record(&dir, info, limit)?;
        for said in place.complaint.into_iter().chain(moved) {
            eprintln!("ampdoctor: {said}");
            recorder.note(Note { step: 0, kind: NoteKind::Information, text: said });
        }
        let observer = Observer::install(&attachment).ok_or("LibTorch refused the observer")?;
        Ok(Active::new(attachment, observer, recorder, sampler, sampling))
    }

    fn run_info(&self, attachment: &Attachment, dir: &Path, sampling: Sampling, place: &Place) -> RunInfo {
        RunInfo {
            name: dir.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned()),
            command: self
                .command
                .clone()
                .unwrap_or_else(|| std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect()),
            started_unix_ms: run_dir::unix_ms(),
            pid: std::process::id(),
            rank: place.rank,
            world_size: place.world_size,
            producer: concat!("ampdoctor-torch ", env!("CARGO_PKG_VERSION")).into(),
            framework: observer::framework(),
            device: attachment.device(),
            threads: u32::try_from(tch::get_num_threads()).unwrap_or(0),
            sampling,
            parameters: attachment.parameters(),
        }
    }
}

/// Begins the recording. Where another process records the same rank in this directory, it gets one of its own in there, and what there is to say of that: neither
/// of the two is to lose what it saw.
fn record(dir: &Path, info: RunInfo, limit: Option<u64>) -> Result<(Recorder, Option<String>), String> {
    match Recorder::create_within(dir, &info, limit) {
        Err(WriteError::Busy { .. }) => {}
        made => return made.map(|recorder| (recorder, None)).map_err(|error| error.to_string()),
    }
    let said = format!(
        "another process, or another doctor of this one, records rank {} in {}; give each process its RANK (0, 1, ...), or set AMPDOCTOR_RUN to a \
         directory of its own",
        info.rank,
        dir.display()
    );
    let own =
        own_run_dir(dir, info.pid).map_err(|error| format!("{said}; none could be made for this one ({error})"))?;
    let name = own.file_name().map_or_else(|| info.name.clone(), |name| name.to_string_lossy().into_owned());
    let recorder =
        Recorder::create_within(&own, &RunInfo { name, ..info }, limit).map_err(|error| error.to_string())?;
    Ok((recorder, Some(format!("{said}. This one records apart from the others: {}", own.display()))))
}
