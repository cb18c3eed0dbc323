//! A run under observation, and its recording as records.
#![allow(dead_code)] // each test file uses a part

use std::path::Path;

use ampdoctor::observation::{Note, Observation, Probe, Record, RunInfo, Shadow, Site, Step};
use ampdoctor::recording::read_run;
use ampdoctor::rules::Diagnosis;
use ampdoctor_torch::{Doctor, DoctorBuilder};
use tch::nn::{self, VarStore};
use tch::{Device, Kind, Tensor};

/// A recording, read whole.
#[derive(Default)]
pub struct Run {
    pub info: Option<RunInfo>,
    pub sites: Vec<Site>,
    pub steps: Vec<Step>,
    pub shadows: Vec<Shadow>,
    pub notes: Vec<Note>,
    pub ended: bool,
    /// Codes of what was found, in the order of the report.
    pub codes: Vec<&'static str>,
}

impl Run {
    pub fn read(path: &Path) -> Self {
        let mut run = Self::default();
        let mut diagnosis = Diagnosis::new();
        for record in read_run(path).expect("the recording opens") {
            let record = record.expect("the recording is whole");
            diagnosis.apply(record.clone());
            match record {
                Record::Run(info) => run.info = Some(info),
                Record::Site(_, site) => run.sites.push(site),
                Record::Step(step) => run.steps.push(step),
                Record::Shadow(shadow) => run.shadows.push(shadow),
                Record::Note(note) => run.notes.push(note),
                Record::Scaler(_) | Record::Thinned(_) => {}
                Record::End(_) => run.ended = true,
            }
        }
        run.codes = diagnosis.findings().iter().map(|finding| finding.code).collect();
        run
    }

    pub fn site(&self, observation: &Observation) -> &Site {
        &self.sites[observation.site.0 as usize]
    }

    /// Observations of a step at the sites that `wanted` accepts.
    pub fn at(&self, step: usize, wanted: impl Fn(&Site) -> bool) -> Vec<&Observation> {
        self.steps[step].observations.iter().filter(|o| wanted(self.site(o))).collect()
    }

    /// The one observation of a probe whose site's label is `label`.
    pub fn one(&self, step: usize, probe: Probe, label: &str) -> &Observation {
        let found = self.at(step, |s| s.probe == probe && s.label() == label);
        assert_eq!(found.len(), 1, "{label} {probe:?} once in {:#?}", self.labels(step));
        found[0]
    }

    /// Labels of a step's observations, in order.
    pub fn labels(&self, step: usize) -> Vec<String> {
        let label = |o: &Observation| {
            format!("{} {} {}", self.site(o).probe.name(), self.site(o).label(), self.site(o).dtype.name())
        };
        self.steps[step].observations.iter().map(label).collect()
    }
}

/// A store on the CPU, with one intra-op thread and a fixed seed.
pub fn store(seed: i64) -> VarStore {
    tch::set_num_threads(1);
    tch::manual_seed(seed);
    VarStore::new(Device::Cpu)
}

/// Runs `training` under a doctor that watches every step in full, and gives the recording.
pub fn observe(vs: &VarStore, training: impl FnOnce(&mut Doctor)) -> Run {
    observe_with(Doctor::builder().every(1), vs, training)
}

/// As [`observe`], with other settings.
pub fn observe_with(builder: DoctorBuilder, vs: &VarStore, training: impl FnOnce(&mut Doctor)) -> Run {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut doctor = builder.run(dir.path()).attach(vs);
    assert!(doctor.is_attached());
    training(&mut doctor);
    let report = doctor.finish();
    Run::read(report.recording().expect("a recording"))
}

/// A two-layer perceptron: 8 -> 16 -> 4.
pub fn mlp(vs: &VarStore) -> impl nn::Module + use<> {
    nn::seq().add(nn::linear(vs.root() / "fc1", 8, 16, Default::default())).add_fn(|x| x.relu()).add(nn::linear(
        vs.root() / "fc2",
        16,
        4,
        Default::default(),
    ))
}

/// A batch of 32 for [`mlp`].
pub fn batch() -> (Tensor, Tensor) {
    let x = Tensor::randn([32, 8], (Kind::Float, Device::Cpu));
    let y = x.narrow(1, 0, 4).argmax(1, false);
    (x, y)
}
