//! Tells a recording that is being written from one that lies there.

use std::fs::File;

/// Marks a recording as being written, until the file is closed; false where another process, or another recorder of this one, writes it.
///
/// The mark is an advisory lock: it goes with its process however that ends, and no reader asks for it. A file system without locks has none to
/// refuse, and the answer is true there.
#[cfg(unix)]
pub(super) fn claim(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is that of an open file which outlives the call, and `flock` takes no pointer.
    let claimed = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    claimed || std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock
}

/// There is nothing to ask.
#[cfg(not(unix))]
pub(super) fn claim(_: &File) -> bool {
    true
}
