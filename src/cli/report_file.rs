//! A report on disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::recording::{DecodeError, ReadError, Records};

/// Links that are followed at most, as the system does.
const MOST_LINKS: usize = 40;

/// A file that a report will be written to, known to be writable before the run that it will report.
#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    /// The file that is written and then renamed; `None` for a device or a pipe, which is written at once.
    partial: Option<Partial>,
}

/// A new file beside the report, removed again unless it became the report.
#[derive(Debug)]
struct Partial {
    file: File,
    path: PathBuf,
    /// The report, behind all symbolic links.
    target: PathBuf,
    renamed: bool,
}

impl ReportFile {
    /// Makes sure that the file can be written; a report that is there stays until [`ReportFile::write`].
    ///
    /// Refuses what would be lost for good, a recording, and makes no directories: a slip in the path is told and not carried out.
    pub fn prepare(path: PathBuf) -> anyhow::Result<Self> {
        let target = behind_links(&path).with_context(|| cannot_write(&path))?;
        let existing = fs::metadata(&target).ok();
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            bail!("{}: it is a directory", cannot_write(&path));
        }
        if existing.as_ref().is_some_and(|meta| !meta.is_file()) {
            return Ok(Self { path, partial: None });
        }
        if is_recording(&target) {
            bail!("this is a recording, and a report would overwrite it; name another file: {}", path.display());
        }
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !parent.exists() {
            let parent = parent.display();
            bail!(
                "there is no such directory for the report; make it first with mkdir -p {parent}: {}",
                path.display()
            );
        }
        let partial = Partial::beside(target, existing).with_context(|| cannot_write(&path))?;
        Ok(Self { path, partial: Some(partial) })
    }

    /// Writes the report whole or not at all.
    pub fn write(self, text: &str) -> anyhow::Result<()> {
        let result = match self.partial {
            None => {
                OpenOptions::new().write(true).open(&self.path).and_then(|mut file| file.write_all(text.as_bytes()))
            }
            Some(partial) => partial.become_the_report(text),
        };
        result.with_context(|| cannot_write(&self.path))
    }

    /// Where the report lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Partial {
    fn beside(target: PathBuf, existing: Option<fs::Metadata>) -> io::Result<Self> {
        let name =
            target.file_name().ok_or_else(|| io::Error::other("it names no file"))?.to_string_lossy().into_owned();
        let mut n = 0;
        let (file, path) = loop {
            let path = target.with_file_name(format!(".{name}.{}-{n}.partial", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => n += 1,
                file => break (file?, path),
            }
        };
        let partial = Self { file, path, target, renamed: false };
        if let Some(existing) = existing {
            partial.file.set_permissions(existing.permissions())?;
        }
        Ok(partial)
    }

    fn become_the_report(mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        fs::rename(&self.path, &self.target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.renamed {
            // Left behind it would be a nuisance, but no wrong report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The path that a write to `path` reaches; it need not exist.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&target) {
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            // No link, or nothing there yet.
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::other("its symbolic links go round in a circle"))
}

/// Whether a recording lies here, by its name or by how it begins.
fn is_recording(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("rank-") && name.contains(".amprec") {
        return true;
    }
    match Records::open(path).map(|mut records| records.next()) {
        Ok(Some(Ok(_))) => true,
        Ok(Some(Err(ReadError::Content { source, .. }))) => !matches!(source, DecodeError::NotOurs { .. }),
        _ => false,
    }
}

fn cannot_write(path: &Path) -> String {
    format!("could not write the report to {}; name a file in a directory that can be written", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        format!("{:#}", ReportFile::prepare(path.into()).unwrap_err())
    }

    #[test]
    fn a_report_is_written_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        ReportFile::prepare(path.clone()).unwrap().write("{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_is_not_there_is_told_and_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let error = refusal(&dir.path().join("a/b/report.json"));
        assert!(error.contains(&format!("mkdir -p {}/a/b", dir.path().display())), "{error}");
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn a_report_goes_to_where_a_link_points_and_a_file_of_another_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("kept")).unwrap();
        let (link, other) = (dir.path().join("latest.json"), dir.path().join("latest.json.partial"));
        std::os::unix::fs::symlink("kept/one.json", &link).unwrap();
        fs::write(&other, "mine").unwrap();
        for text in ["first", "second"] {
            ReportFile::prepare(link.clone()).unwrap().write(text).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("kept/one.json")).unwrap(), text);
        }
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
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
