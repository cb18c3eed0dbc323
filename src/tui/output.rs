//! The file that holds what the command printed: how much of it is kept, and its end as a terminal would show it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How much of the output is shown.
const TAIL_BYTES: u64 = 64 << 10;
/// From this size on the file is shortened: training for weeks with a progress bar must not fill the disk that the checkpoints go to.
pub const LIMIT: u64 = 8 << 20;
/// What is kept of it then.
const KEEP: u64 = 1 << 20;

/// What the command printed, and the care for its length.
#[derive(Debug)]
pub struct Output {
    /// The file.
    pub path: PathBuf,
    /// Why it could not be shortened.
    pub problem: Option<String>,
}

impl Output {
    /// The output in the file at `path`, which need not be there.
    pub fn at(path: PathBuf) -> Self {
        Self { path, problem: None }
    }

    /// Keeps the file below [`LIMIT`], but for what the command prints between two calls.
    pub fn keep_short(&mut self) {
        if let Err(error) = shorten(&self.path, LIMIT, KEEP) {
            self.problem = Some(format!("the output could not be kept below {} MB: {error}", LIMIT >> 20));
        }
    }

    /// The last lines; `None` where there is no such file.
    pub fn tail(&self) -> Option<Vec<String>> {
        let tail = tail(&self.path).unwrap_or_else(|error| {
            Some(vec![format!("the output cannot be read ({error}): {}", self.path.display())])
        });
        let problem = self.problem.clone();
        tail.map(|lines| lines.into_iter().chain(problem).collect())
    }
}

/// Cuts the beginning of a file that is longer than `limit`, down to its last `keep` bytes and a line that says so. The command has it open and
/// appends; what it writes in the moment between the reading of the end and the cut is lost.
fn shorten(path: &Path, limit: u64, keep: u64) -> io::Result<()> {
    let length = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?.len(),
    };
    if length <= limit {
        return Ok(());
    }
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    file.seek(SeekFrom::Start(length.saturating_sub(keep)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    let begins = end.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let cut = length.saturating_sub(keep) + begins as u64;
    file.set_len(0)?;
    let mut kept = format!("[{cut} bytes cut here, to keep this file below {} MB]\n", limit >> 20).into_bytes();
    kept.extend_from_slice(end.get(begins..).unwrap_or_default());
    file.write_all(&kept)
}

/// The last lines of the file at `path`, as a terminal would have shown them: without escape sequences, and of a line that was
/// overwritten (a progress bar) the last state. `None` when there is no such file.
pub fn tail(path: &Path) -> io::Result<Option<Vec<String>>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let start = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line of a part is cut somewhere.
    let mut lines: Vec<String> = text.split('\n').skip(usize::from(start > 0)).map(visible).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    Ok(Some(lines))
}

/// What is left on the screen of one line of output.
fn visible(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let line = line.rsplit('\r').next().unwrap_or(line);
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' if chars.peek() == Some(&'[') => {
                chars.next();
                chars.by_ref().find(|c| ('\x40'..='\x7e').contains(c));
            }
            '\t' => out.push_str("    "),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these numbered lines, and somebody who goes on appending to it.
    fn file(lines: usize) -> (tempfile::TempDir, PathBuf, File) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("output.log");
        let mut writer = OpenOptions::new().create(true).append(true).open(&path).expect("opened");
        (0..lines).for_each(|i| writeln!(writer, "line {i:05}").expect("written"));
        (dir, path, writer)
    }

    #[test]
    fn a_long_output_is_cut_to_its_end_and_goes_on_there() {
        let (_dir, path, mut writer) = file(10_000);
        shorten(&path, 100_000, 1_000).expect("shortened");
        writeln!(writer, "and on").expect("written");
        let text = std::fs::read_to_string(&path).expect("readable");
        let lines: Vec<&str> = text.lines().collect();
        assert!(text.len() < 1_200 && lines[0].contains("bytes cut here"), "{text}");
        assert_eq!(lines[lines.len() - 2..], ["line 09999", "and on"]);
        let first: usize = lines[1].strip_prefix("line ").and_then(|n| n.parse().ok()).expect("a whole line");
        assert!(lines[0].starts_with(&format!("[{} ", first * 11)), "{} before line {first}", lines[0]);
    }

    #[test]
    fn a_short_output_and_none_are_left_alone() {
        let (dir, path, _writer) = file(10);
        shorten(&path, 1_000, 100).expect("nothing to do");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 110);
        shorten(&dir.path().join("none"), 1_000, 100).expect("nothing to do");
    }

    #[test]
    fn one_endless_line_is_cut_too() {
        let (_dir, path, mut writer) = file(0);
        writer.write_all(&[b'x'; 5_000]).expect("written");
        shorten(&path, 2_000, 500).expect("shortened");
        let text = std::fs::read_to_string(&path).expect("readable");
        assert!(text.len() < 600 && text.ends_with("xxx"), "{text}");
    }

    #[test]
    fn what_cannot_be_shortened_is_said_with_the_output() {
        let (_dir, path, _writer) = file(3);
        let problem = Some("the output could not be kept below 8 MB: no space".to_owned());
        let lines = Output { path, problem }.tail().expect("there");
        assert_eq!((lines.len(), lines.last().map(|l| l.contains("kept below 8 MB"))), (4, Some(true)));
    }

    #[test]
    fn output_is_shown_as_a_terminal_would_have_left_it() {
        assert_eq!(visible("\x1b[31mred\x1b[0m\tx"), "red    x");
        assert_eq!(visible("10 %\r50 %\r100 %\r"), "100 %");
    }
}
