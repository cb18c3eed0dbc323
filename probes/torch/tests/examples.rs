//! Loops as they are in the wild, each an example of this package. Each is run with a doctor and without one, as a user runs it: the weights must be the same,
//! bit for bit; what the model has must have been seen; and a healthy run must be told nothing.

#[path = "examples/page.rs"]
mod page;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ampdoctor::aggregate::Coverage;
use ampdoctor::observation::{Probe, Record, Site};
use ampdoctor::recording::{read_run, runs_within};
use ampdoctor::rules::Diagnosis;

/// What a loop saves, and what the doctor cannot see of it.
struct Loop {
    name: &'static str,
    /// What it is given as its argument, below a folder: a file, or the folder itself.
    saves: &'static str,
    /// Recordings that it makes.
    recordings: usize,
    /// The beginning of everything that is said to be unseen.
    unseen: &'static [&'static str],
}

const ONE_FILE: Loop = Loop { name: "", saves: "weights.safetensors", recordings: 1, unseen: &[] };
const FOLDER: Loop = Loop { saves: "", ..ONE_FILE };

const LOOPS: [Loop; 19] = [
    Loop { name: "accumulation", ..ONE_FILE },
    Loop { name: "channels_last", ..ONE_FILE },
    Loop { name: "char_lstm", ..ONE_FILE },
    Loop { name: "checkpoint", ..ONE_FILE },
    Loop { name: "clipped", ..ONE_FILE },
    Loop { name: "gan", ..FOLDER },
    Loop { name: "gan_one_store", ..ONE_FILE },
    Loop { name: "gpt", ..ONE_FILE },
    Loop { name: "gradient_penalty", ..ONE_FILE },
    Loop { name: "in_place", ..ONE_FILE },
    Loop { name: "late_variables", ..ONE_FILE },
    Loop { name: "own_optimizer", ..ONE_FILE },
    Loop { name: "own_scaler", ..ONE_FILE },
    Loop { name: "resnet", ..ONE_FILE },
    Loop { name: "sparse_embedding", ..FOLDER },
    Loop {
        name: "torchscript",
        unseen: &["a TorchScript module runs as compiled graphs", "the running statistics of a batch norm"],
        ..ONE_FILE
    },
    Loop { name: "transfer", ..ONE_FILE },
    Loop { name: "two_threads", recordings: 2, ..FOLDER },
    Loop { name: "vae", ..ONE_FILE },
];

/// What marks the lines that a doctor adds to a loop.
const LINE_ONE: &str = "// ampdoctor: line one";
const LINE_TWO: &str = "// ampdoctor: line two";

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// The example as it was built. `cargo test` builds all of them unless it is given a single test to run.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let release = test.parent().and_then(Path::parent).expect("tests lie in <target>/release/deps");
    let program = release.join("examples").join(name);
    let time = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let newest = time(&sources().join(name).with_extension("rs")).max(time(&release.join("libampdoctor_torch.rlib")));
    assert!(
        time(&program) >= newest,
        "{name} is not built, or older than its source: cargo build --release -p ampdoctor-torch --examples"
    );
    program
}

/// What a loop left behind.
struct Outcome {
    /// The files that it saved, by name.
    weights: BTreeMap<String, Vec<u8>>,
    printed: String,
}

impl Loop {
    /// Runs it as a program, in `dir`, with these variables.
    fn run(&self, dir: &Path, variables: &[(&str, &Path)]) -> Outcome {
        let saved = dir.join("saved");
        fs::create_dir(&saved).expect("a folder");
        let mut command = Command::new(built(self.name));
        command.arg(saved.join(self.saves)).current_dir(dir);
        for name in ["AMPDOCTOR", "AMPDOCTOR_RUN", "AMPDOCTOR_SAMPLING", "RANK"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        let output = command.output().expect("it starts");
        let [printed, said] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{}: {}\n{said}", self.name, output.status);
        let files = fs::read_dir(&saved).expect("the folder").map(|entry| entry.expect("an entry").path());
        let weights = files.map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("a file"))
        });
        Outcome { weights: weights.collect(), printed }
    }

    /// Runs it with a doctor that scans every step, and gives its recordings.
    fn observed(&self, dir: &Path) -> (Outcome, Vec<PathBuf>) {
        let run = dir.join("run");
        let outcome = self.run(dir, &[("AMPDOCTOR_RUN", &run), ("AMPDOCTOR_SAMPLING", Path::new("every:1"))]);
        // A second doctor finds the directory taken, and makes one in there.
        let recordings: Vec<_> = runs_within(&run).into_iter().chain([run]).collect();
        assert_eq!(recordings.len(), self.recordings, "{}", self.name);
        (outcome, recordings)
    }
}

fn diagnose(recording: &Path) -> Diagnosis {
    let mut diagnosis = Diagnosis::new();
    for record in read_run(recording).expect("the recording opens") {
        diagnosis.apply(record.expect("the recording is whole"));
    }
    diagnosis
}

/// What was seen of a run: parameters and layers, and what was not, in words.
fn seen(diagnosis: &Diagnosis) -> (String, String, Vec<String>) {
    let coverage = Coverage::of(diagnosis.aggregate()).expect("a backward pass was scanned");
    assert!(!coverage.parameters.is_empty());
    let unseen = coverage.missing().into_iter().chain(diagnosis.aggregate().blind_spots().map(str::to_owned));
    let parameters = format!("{} of {}", coverage.seen_parameters(), coverage.parameters.len());
    (parameters, format!("{} of {}", coverage.seen_layers(), coverage.layers.len()), unseen.collect())
}

/// What a step shows of a part of the model and lacks of the rest: a parameter that has a gradient is stepped, unless the scaler withheld that, and its layer has an
/// activation and the gradient of one.
fn lacking(recording: &Path) -> Vec<String> {
    let mut sites: Vec<Site> = Vec::new();
    let mut lacking = Vec::new();
    for record in read_run(recording).expect("the recording opens") {
        match record.expect("the recording is whole") {
            Record::Site(_, site) => sites.push(site),
            Record::Step(step) => {
                let here: Vec<&Site> = step.observations.iter().map(|o| &sites[o.site.0 as usize]).collect();
                let any = |probe: Probe, at: &dyn Fn(&Site) -> bool| here.iter().any(|s| s.probe == probe && at(s));
                for gradient in here.iter().filter(|site| site.probe == Probe::ParamGrad) {
                    let stepped = step.skipped() || any(Probe::Update, &|s| s.label() == gradient.label());
                    let layer = |s: &Site| s.layer == gradient.layer;
                    let computed = any(Probe::Activation, &layer) && any(Probe::ActivationGrad, &layer);
                    if !stepped || !computed {
                        lacking.push(format!(
                            "step {}: {} stepped: {stepped}, layer: {computed}",
                            step.index,
                            gradient.label()
                        ));
                    }
                }
            }
            _ => {}
        }
    }
    lacking
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Runs a loop with and without a doctor.
fn examine(of: &Loop) {
    let name = of.name;
    let (with, without) = (folder(), folder());
    let (observed, recordings) = of.observed(with.path());
    let unobserved = of.run(without.path(), &[("AMPDOCTOR", Path::new("off"))]);
    assert!(!unobserved.weights.is_empty() && observed.weights == unobserved.weights, "{name}: the weights differ");
    assert_eq!(observed.printed, unobserved.printed, "{name}: what the program prints");
    assert!(!without.path().join("ampdoctor-runs").exists(), "{name}: a doctor that is off records nothing");
    let (mut parameters, mut layers) = (Vec::new(), Vec::new());
    for recording in recordings {
        let diagnosis = diagnose(&recording);
        let found: Vec<_> = diagnosis.findings().iter().map(|f| (f.code, f.layer.as_str())).collect();
        assert!(found.is_empty(), "{name} is healthy, but: {found:?}");
        let (seen_parameters, seen_layers, unseen) = seen(&diagnosis);
        let expected = |said: &String| of.unseen.iter().any(|start| said.starts_with(start));
        assert!(unseen.iter().all(expected) && unseen.len() == of.unseen.len(), "{name}: not seen: {unseen:#?}");
        let lacking = lacking(&recording);
        assert!(lacking.is_empty(), "{name}: {lacking:#?}");
        parameters.push(seen_parameters);
        layers.push(seen_layers);
    }
    let spots = if of.unseen.is_empty() { "none".to_owned() } else { of.unseen.join("; ") };
    page::hold(name, &format!("| {} | {} | {spots} |", parameters.join("; "), layers.join("; ")));
}

#[test]
fn a_doctor_adds_two_lines_to_a_loop_and_no_more() {
    for of in &LOOPS {
        let source = fs::read_to_string(sources().join(of.name).with_extension("rs")).expect("the example's source");
        let ends = |mark: &str| source.lines().filter(|line| line.ends_with(mark)).count();
        assert_eq!((ends(LINE_ONE), ends(LINE_TWO)), (1, 1), "{}", of.name);
        let rest = source.lines().filter(|line| !line.ends_with(LINE_ONE) && !line.ends_with(LINE_TWO));
        let code = rest.filter(|line| !line.trim_start().starts_with("//"));
        let mentions: Vec<_> =
            code.filter(|line| line.to_lowercase().contains("doctor.") || line.contains("Doctor")).collect();
        assert!(mentions.is_empty(), "{}: {mentions:?}", of.name);
    }
}

#[test]
fn every_example_is_examined_and_stands_on_the_page() {
    let files = fs::read_dir(sources()).expect("examples").map(|entry| entry.expect("an entry").path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    page::hold_the_rest(&LOOPS.map(|of| of.name));
    let mut examined: Vec<&str> = LOOPS.iter().map(|of| of.name).chain(["attach"]).collect();
    examined.sort_unstable();
    assert_eq!(names, examined);
}

/// A test for each loop, so that they run side by side and each is named where it fails.
macro_rules! examined {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            examine(LOOPS.iter().find(|of| of.name == stringify!($name)).expect("a loop of this name"));
        }
    )*

    #[test]
    fn every_loop_has_a_test() {
        assert_eq!(LOOPS.map(|of| of.name), [$(stringify!($name)),*]);
    }
    };
}

examined! {
    accumulation channels_last char_lstm checkpoint clipped gan gan_one_store gpt gradient_penalty in_place late_variables own_optimizer own_scaler resnet sparse_embedding torchscript transfer two_threads vae
}
