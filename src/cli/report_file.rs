//! A report on disk.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A file that a report will be written to, known to be writable before the run that it will report.
#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    /// The file that is written and then renamed; `None` for a device or a pipe, which is written at once.
    partial: Option<PathBuf>,
}

impl ReportFile {
    /// Makes sure that the file can be written, its directory included; a report that is there stays until [`ReportFile::write`].
    pub fn prepare(path: PathBuf) -> anyhow::Result<Self> {
        Self::try_prepare(&path).with_context(|| cannot_write(&path))
    }

    fn try_prepare(path: &Path) -> std::io::Result<Self> {
        let existing = fs::metadata(path).ok();
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(std::io::Error::other("it is a directory"));
        }
        if existing.is_some_and(|meta| !meta.is_file()) {
            return Ok(Self { path: path.into(), partial: None });
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent)?;
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        File::create(&partial)?;
        Ok(Self { path: path.into(), partial: Some(partial) })
    }

    /// Writes the report whole or not at all.
    pub fn write(mut self, text: &str) -> anyhow::Result<()> {
        let result = match &self.partial {
            None => fs::write(&self.path, text),
            Some(partial) => write_and_rename(partial, &self.path, text),
        };
        if result.is_ok() {
            self.partial = None;
        }
        result.with_context(|| cannot_write(&self.path))
    }

    /// Where the report lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Left behind it would be a nuisance, but no wrong report.
            let _ = fs::remove_file(partial);
        }
    }
}

fn write_and_rename(partial: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create(partial)?;
    file.write_all(text.as_bytes())?;
    drop(file);
    fs::rename(partial, path)
}

fn cannot_write(path: &Path) -> String {
    format!("could not write the report to {}; name a file in a directory that can be written", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_made_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/report.json");
        ReportFile::prepare(path.clone()).unwrap().write("{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn an_old_report_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        fs::write(&path, "old").unwrap();
        drop(ReportFile::prepare(path.clone()).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_is_no_report() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", ReportFile::prepare(dir.path().into()).unwrap_err());
        assert!(error.contains("it is a directory"), "{error}");
    }
}
