//! Attached or not, failing or not: the training is the same, bit for bit.

mod observed;

use std::hash::{Hash, Hasher};
use std::sync::Mutex;

use ampdoctor::observation::NoteKind;
use ampdoctor_torch::sabotage::{self, Place};
use ampdoctor_torch::{Doctor, GradScaler, autocast};
use observed::{Run, batch, mlp, store};
use tch::nn::{self, Module, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};

/// What is planted is planted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// All parameters and buffers, and one random number drawn at the end.
type Fingerprint = Vec<(String, Vec<u8>)>;

fn fingerprint(vs: &VarStore) -> Fingerprint {
    let mut all: Vec<_> = vs.variables().into_iter().map(|(name, t)| (name, bytes(&t))).collect();
    all.sort();
    all.push(("randn".into(), bytes(&Tensor::randn([4], (Kind::Float, Device::Cpu)))));
    all
}

fn bytes(t: &Tensor) -> Vec<u8> {
    let values: Vec<f64> = Vec::try_from(t.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap();
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Ten steps in FP16 with dropout, batch norm and a scaler that overflows at first.
fn train(vs: &VarStore, mut doctor: Option<&mut Doctor>) -> Fingerprint {
    let root = vs.root();
    let fc1 = nn::linear(&root / "fc1", 8, 16, Default::default());
    let bn = nn::batch_norm1d(&root / "bn", 16, Default::default());
    let fc2 = nn::linear(&root / "fc2", 16, 4, Default::default());
    let mut opt = nn::AdamW::default().build(vs, 1e-2).unwrap();
    let mut scaler = GradScaler::builder().init_scale(2f64.powi(24)).growth_interval(3).build().unwrap();
    for _ in 0..10 {
        let (x, y) = batch();
        let loss = autocast(Device::Cpu, Kind::Half, || {
            let hidden = fc1.forward(&x).relu().dropout(0.1, true).apply_t(&bn, true);
            fc2.forward(&hidden).cross_entropy_for_logits(&y)
        });
        opt.zero_grad();
        scaler.backward(&loss);
        scaler.unscale(&mut opt).unwrap();
        opt.clip_grad_norm(1.0);
        scaler.step(&mut opt).unwrap();
        scaler.update().unwrap();
        if let Some(doctor) = doctor.as_deref_mut() {
            doctor.step(&loss);
        }
    }
    fingerprint(vs)
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn unobserved() -> Fingerprint {
    train(&store(1), None)
}

/// The training under a doctor, and its recording.
fn under(builder: ampdoctor_torch::DoctorBuilder) -> (Fingerprint, Run) {
    let dir = tempfile::tempdir().unwrap();
    let vs = store(1);
    // The model is built after the doctor is attached: it is found at the next step boundary.
    let mut doctor = builder.run(dir.path()).attach(&vs);
    let fingerprint = train(&vs, Some(&mut doctor));
    let report = doctor.finish();
    (fingerprint, Run::read(report.recording().unwrap()))
}

#[test]
fn the_weights_are_the_same_with_every_way_of_sampling() {
    let _alone = alone();
    let expected = unobserved();
    for builder in [
        Doctor::builder().every(1),
        Doctor::builder().every(3),
        Doctor::builder().budget(0.02),
        Doctor::builder().off(),
    ] {
        let (fingerprint, run) = under(builder.clone());
        assert!(fingerprint == expected, "{builder:?}");
        assert_eq!((run.steps.len(), run.ended), (10, true));
        assert_eq!(run.notes, []);
    }
}

#[test]
fn a_failure_planted_in_any_callback_detaches_the_doctor_and_nothing_else() {
    let _alone = alone();
    let expected = unobserved();
    let panics = [Place::Start, Place::End, Place::Gradient, Place::Backward, Place::Scaler]
        .map(|place| (place, sabotage::plant_panic as fn(Place), "panic"));
    let exceptions = [Place::Start, Place::End, Place::Gradient]
        .map(|place| (place, sabotage::plant_exception as fn(Place), "exception"));
    for (place, plant, kind) in panics.into_iter().chain(exceptions) {
        plant(place);
        let (fingerprint, run) = under(Doctor::builder().every(1));
        sabotage::clear();
        assert!(fingerprint == expected, "{kind} in {place:?}");
        let detached: Vec<_> = run.notes.iter().filter(|n| n.kind == NoteKind::Detached).collect();
        assert_eq!(detached.len(), 1, "{kind} in {place:?}: {:?}", run.notes);
        assert!(detached[0].text.contains(kind) && detached[0].text.contains("planted"), "{}", detached[0].text);
        assert!(run.ended && run.steps.is_empty(), "{kind} in {place:?}");
    }
    let (fingerprint, run) = under(Doctor::builder().every(1));
    assert!(fingerprint == expected && run.steps.len() == 10, "the next doctor works again");
}

#[test]
fn a_doctor_that_cannot_record_is_inert() {
    let _alone = alone();
    let file = tempfile::NamedTempFile::new().unwrap();
    let vs = store(1);
    let mut doctor = Doctor::builder().run(file.path().join("below-a-file")).attach(&vs);
    assert!(!doctor.is_attached());
    assert!(train(&vs, Some(&mut doctor)) == unobserved());
    let report = doctor.finish();
    assert!(report.recording().is_none());
    assert!(report.diagnose().unwrap().is_none());
}

#[test]
fn a_run_directory_that_is_removed_costs_the_recording_and_nothing_else() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let vs = store(1);
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach(&vs);
    std::fs::remove_dir_all(dir.path()).unwrap();
    assert!(train(&vs, Some(&mut doctor)) == unobserved());
    let report = doctor.finish();
    assert_eq!((report.recording(), report.steps()), (None, 10));
    let failure = report.failure().expect("the recording is gone").to_string();
    assert!(failure.contains(&dir.path().display().to_string()), "{failure}");
}

/// Where the process with the limit records.
const LIMITED_RUN: &str = "AMPDOCTOR_TEST_LIMITED_RUN";

/// Not a test: the training of a process that may write few bytes to a file.
#[test]
#[ignore = "started by the test below"]
fn the_training_with_a_limit() {
    let Some(run) = std::env::var_os(LIMITED_RUN) else { return };
    let vs = store(1);
    let mut doctor = Doctor::builder().every(1).run(&run).attach(&vs);
    let trained = digest(&train(&vs, Some(&mut doctor)));
    let failure = doctor.finish().failure().map(ToString::to_string);
    println!("\ntrained: {trained:016x}; failure: {}", failure.unwrap_or_default());
}

fn digest(fingerprint: &Fingerprint) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    fingerprint.hash(&mut hasher);
    hasher.finish()
}

#[cfg(unix)]
#[test]
fn a_disk_that_takes_no_more_ends_the_recording_and_nothing_else() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 16; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "the_training_with_a_limit"])
        .env(LIMITED_RUN, dir.path())
        .output()
        .unwrap();
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{warned}");
    let expected = format!("trained: {:016x}; failure: ", digest(&unobserved()));
    let line = said.lines().find(|line| line.starts_with("trained: ")).expect("the training came to its end");
    assert!(line.starts_with(&expected), "{line}, not {expected}");
    assert!(line.contains("File too large"), "{line}");
    assert!(warned.contains("File too large"), "said once where nobody asks the report: {warned}");
    let run = Run::read(dir.path());
    assert!(!run.ended && run.steps.len() < 10, "what was written before is there: {} steps", run.steps.len());
}

#[test]
fn a_second_doctor_on_the_same_thread_is_inert_and_the_first_goes_on() {
    let _alone = alone();
    let vs = store(1);
    let net = mlp(&vs);
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut doctor = Doctor::builder().every(1).run(first.path()).attach(&vs);
    let mut other = Doctor::builder().every(1).run(second.path()).attach(&vs);
    assert!(!other.is_attached());
    let (x, y) = batch();
    let loss = net.forward(&x).cross_entropy_for_logits(&y);
    loss.backward();
    doctor.step(&loss);
    other.step(&loss);
    drop(other);
    assert!(!Run::read(doctor.finish().recording().unwrap()).steps[0].observations.is_empty());
    let again = Doctor::builder().run(second.path()).attach(&vs);
    assert!(again.is_attached(), "a finished doctor makes room");
}

#[test]
fn a_panic_in_the_training_is_written_into_the_recording() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let result = std::thread::spawn(move || {
        let vs = store(1);
        let mut doctor = Doctor::builder().run(&path).attach(&vs);
        doctor.step(0.5);
        panic!("planted: the training fails");
    })
    .join();
    assert!(result.is_err());
    let run = Run::read(dir.path());
    assert_eq!((run.steps.len(), run.ended), (1, true));
}
