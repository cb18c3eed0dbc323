//! Lets the programs and tests of this package find LibTorch at run time.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB")
        .expect("torch-sys did not say where LibTorch is; run `make libtorch`, then build again");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
