//! Keeps a limit on the size of files from ending the training.

/// Blocks SIGXFSZ in the calling thread: a write beyond `ulimit -f` then returns an error (`EFBIG`) like that of a full disk,
/// where the signal would end the whole process. Other threads keep what the program has set.
#[cfg(unix)]
pub(super) fn block_file_size_signal() {
    // SAFETY: `sigset_t` is plain data that `sigemptyset` initialises before it is read, all pointers are to a local that
    // outlives the calls, and a null old set is allowed. The calls fail only for a signal or an action that does not exist.
    unsafe {
        let mut signals = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
    }
}

/// There is no such signal.
#[cfg(not(unix))]
pub(super) fn block_file_size_signal() {}
