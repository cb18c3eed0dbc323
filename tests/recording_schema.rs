//! The committed Rust code of the recording's schema is what its `.proto` generates.
//!
//! To write it anew after a change: `AMPDOCTOR_WRITE_SCHEMA=1 cargo test --release --test recording_schema`. This test links the
//! crate, so do it while the crate still compiles: first the `.proto`, then this, then the types of `observation`.

use std::path::Path;

const HEADER: &str =
    "// Generated from ampdoctor.proto: AMPDOCTOR_WRITE_SCHEMA=1 cargo test --release --test recording_schema\n";

fn generated() -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recording");
    let files = protox::compile([dir.join("ampdoctor.proto")], [&dir]).expect("the schema compiles");
    let out = tempfile::tempdir().expect("a folder for the generated code");
    prost_build::Config::new().out_dir(out.path()).compile_fds(files).expect("the schema generates code");
    let code = std::fs::read_to_string(out.path().join("ampdoctor.v1.rs")).expect("the package's file");
    format!("{HEADER}{code}")
}

#[test]
fn the_committed_code_is_what_the_schema_generates() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recording/schema.rs");
    let fresh = generated();
    if std::env::var_os("AMPDOCTOR_WRITE_SCHEMA").is_some() {
        std::fs::write(&committed, &fresh).expect("the committed file can be written");
    }
    let found = std::fs::read_to_string(&committed).expect("src/recording/schema.rs is there");
    assert!(
        found == fresh,
        "src/recording/schema.rs is stale; run: AMPDOCTOR_WRITE_SCHEMA=1 cargo test --release --test recording_schema"
    );
}
