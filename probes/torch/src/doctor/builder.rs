//! How a doctor watches, and attaching it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ampdoctor::observation::{RunInfo, Sampling};
use ampdoctor::recording::Recorder;
use tch::nn::{VarStore, Variables};

use super::{Active, Doctor};
use crate::observer::{self, Attachment, Observer};
use crate::run_dir;
use crate::sampling::Sampler;

/// Share of the step time that the probe may take where nothing else was asked for.
const DEFAULT_BUDGET: f64 = 0.02;

/// How a [`Doctor`] watches, before it is attached.
#[derive(Clone, Debug)]
pub struct DoctorBuilder {
    run: Option<PathBuf>,
    sampling: Sampling,
    command: Option<Vec<String>>,
    rank: Option<u32>,
}

impl Default for DoctorBuilder {
    fn default() -> Self {
        Self { run: None, sampling: Sampling::Budget(DEFAULT_BUDGET), command: None, rank: None }
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
    ///
    /// FP32 copies of a model need no store of their own here: [`MasterWeights`](crate::MasterWeights) tells the doctor of them, and they are seen under the
    /// model's names, in FP32.
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
        let attachment = Arc::new(Attachment::new(stores, sampler.first()));
        let dir = self.run.clone().map_or_else(run_dir::default_dir, Ok)?;
        let info = self.run_info(&attachment, &dir);
        let recorder = Recorder::create(&dir, &info).map_err(|e| e.to_string())?;
        let observer = Observer::install(&attachment).ok_or("LibTorch refused the observer")?;
        Ok(Active::new(attachment, observer, recorder, sampler, self.sampling))
    }

    fn run_info(&self, attachment: &Attachment, dir: &Path) -> RunInfo {
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
            device: attachment.device(),
            threads: u32::try_from(tch::get_num_threads()).unwrap_or(0),
            sampling: self.sampling,
            parameters: attachment.parameters(),
        }
    }
}
