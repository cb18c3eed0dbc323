//! Where a run is recorded, and what the environment says of it.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ampdoctor::recording::{RUNS, new_run_dir};

/// `AMPDOCTOR_RUN`, or a new directory under `ampdoctor-runs/` named after the time and the program.
pub(crate) fn default_dir() -> Result<PathBuf, String> {
    match named() {
        Some(dir) => Ok(dir),
        None => new_run_dir(Path::new(RUNS), &program(), SystemTime::now()).map_err(|error| {
            format!("could not create a run directory in {RUNS}: {error}; set AMPDOCTOR_RUN to one that can be written")
        }),
    }
}

/// Whether the environment names a run directory.
pub(crate) fn is_named() -> bool {
    named().is_some()
}

fn named() -> Option<PathBuf> {
    std::env::var_os("AMPDOCTOR_RUN").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn program() -> String {
    let exe = std::env::current_exe().ok();
    exe.and_then(|path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "run".into())
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
