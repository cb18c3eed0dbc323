//! The modules stand along the path of the data, and each imports only from those before it.

use std::fs;
use std::path::{Path, PathBuf};

/// The order of `src/lib.rs`.
const PATH_OF_THE_DATA: [&str; 9] =
    ["scan", "numerics", "observation", "recording", "aggregate", "rules", "report", "tui", "cli"];

fn source_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|e| panic!("cannot read {}: {e}", directory.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a directory entry").path())
        .flat_map(|path| if path.is_dir() { source_files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect();
    files.sort();
    files
}

/// The code of a file: no comments, and nothing from its tests on.
fn code(text: &str) -> String {
    let before_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    before_tests.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Modules of this crate that `code` names: `crate::x`, and each `x` in `crate::{x::..., y}`.
fn imported(code: &str) -> Vec<String> {
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => names.extend(top_level_items(group).iter().map(|item| word(item.trim()))),
            None => names.push(word(rest)),
        }
    }
    names
}

fn top_level_items(group: &str) -> Vec<String> {
    let (mut depth, mut items) = (0, vec![String::new()]);
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => items.push(String::new()),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                items.last_mut().expect("one item").push(c);
            }
        }
    }
    items
}

#[test]
fn no_module_imports_from_one_further_along_the_path() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for (place, module) in PATH_OF_THE_DATA.iter().enumerate() {
        for file in source_files(&src.join(module)) {
            let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
            for name in imported(&code(&text)) {
                if PATH_OF_THE_DATA.iter().position(|m| *m == name).is_some_and(|p| p > place) {
                    wrong.push(format!("{module} imports {name} in {}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_path_is_that_of_the_source_tree() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let directories = fs::read_dir(&src).expect("src").map(|e| e.expect("an entry").path()).filter(|p| p.is_dir());
    let mut names: Vec<String> = directories.map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    let mut expected = PATH_OF_THE_DATA.map(String::from).to_vec();
    expected.sort();
    assert_eq!(names, expected, "a new module takes its place in the path, here and in src/lib.rs");
}

#[test]
fn the_check_sees_what_it_looks_for() {
    assert_eq!(imported("use crate::rules::Finding;\nlet x = crate::scan::scan();"), ["rules", "scan"]);
    assert_eq!(imported("use crate::{scan::{Dtype, Stats}, tui};"), ["scan", "tui"]);
    assert_eq!(
        imported(&code("// use crate::tui;\n#[cfg(test)]\nmod tests {\nuse crate::cli;}")),
        Vec::<String>::new()
    );
}

#[test]
fn nothing_in_the_viewer_knows_libtorch() {
    for file in source_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
        // The pages of the rules quote lines of a training loop.
        let code = || text.lines().filter(|line| !line.trim_start().starts_with("//"));
        assert!(!code().any(|line| line.contains(" tch::") || line.contains("torch_sys")), "{}", file.display());
    }
}
