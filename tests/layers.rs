//! The arrows between the modules are the architecture: each imports only from those that stand before it on the path of the data.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `src/` in the order of the data.
const LAYERS: [&str; 9] =
    ["scan", "numerics", "observation", "recording", "aggregate", "rules", "report", "tui", "cli"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => rust_files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The modules that a file names after `crate::`.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("crate::").map(|(at, path)| {
        let rest = &text[at + path.len()..];
        &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())]
    })
}

#[test]
fn a_module_imports_only_from_those_before_it() {
    let mut wrong = Vec::new();
    for (layer, module) in LAYERS.iter().enumerate() {
        for file in rust_files(&source().join(module)) {
            let text = fs::read_to_string(&file).unwrap();
            let later = named(&text).filter(|name| LAYERS[layer + 1..].contains(name));
            wrong.extend(later.map(|name| format!("{} imports {name}", file.display())));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_module_has_its_place_in_the_order() {
    let mut modules: Vec<String> = fs::read_dir(source())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    modules.sort();
    let mut layers = LAYERS.map(String::from).to_vec();
    layers.sort();
    assert_eq!(modules, layers);
}

#[test]
fn nothing_in_the_viewer_knows_libtorch() {
    for file in rust_files(&source()) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains(" tch::") && !text.contains("torch_sys"), "{}", file.display());
    }
}
