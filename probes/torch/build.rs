//! Compiles the C++ shim against the LibTorch that torch-sys found, and lets this package's own tests and examples find it at run time.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let lib = libtorch_lib();
    println!("cargo:rustc-link-search=native={}", lib.display());
    compile_shim(&lib);
    for library in ["torch_cpu", "c10"] {
        println!("cargo:rustc-link-lib={library}");
    }
    if env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family.contains("unix")) {
        // Reaches the binaries, tests and examples of this package only; users of the library set LD_LIBRARY_PATH, as for tch.
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    }
}

/// Where torch-sys found LibTorch's libraries; its headers lie beside.
fn libtorch_lib() -> PathBuf {
    env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from).unwrap_or_else(|| {
        panic!("torch-sys did not say where LibTorch is; set LIBTORCH to its folder, or run `make libtorch`, then build again")
    })
}

fn compile_shim(lib: &Path) {
    let include = lib.join("../include");
    let sources = shim_files();
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .pic(true)
        // `at::RecordFunction` has a member that exists only without NDEBUG; the library was compiled with it.
        .define("NDEBUG", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include("shim")
        .flag("-isystem")
        .flag(&*include.to_string_lossy())
        .flag("-isystem")
        .flag(&*include.join("torch/csrc/api/include").to_string_lossy())
        .warnings(true)
        .files(sources.iter().filter(|file| file.extension().is_some_and(|ext| ext == "cpp")));
    build.compile("ampdoctor_shim");
}

/// Every file of `shim/` in a fixed order; a change to any, or a new one, compiles the shim again.
fn shim_files() -> Vec<PathBuf> {
    println!("cargo:rerun-if-changed=shim");
    let entries = fs::read_dir("shim").expect("the folder shim/ belongs to this package");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("shim/ is readable").path()).collect();
    files.sort();
    files
}
