//! The C++ shim, as Rust calls it: every call catches C++ exceptions and returns a code.

use std::ffi::{CStr, c_char, c_int};

/// A C++ exception that a call of the shim caught.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShimError(String);

unsafe extern "C" {
    fn ampdoctor_last_error() -> *const c_char;
}

/// Turns the return code of a shim function into a result, with the message that the shim kept for this thread.
pub(crate) fn check(code: c_int) -> Result<(), ShimError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: never null, and valid until the next call on this thread fails; it is copied at once.
    let message = unsafe { CStr::from_ptr(ampdoctor_last_error()) };
    Err(ShimError(first_line(&message.to_string_lossy())))
}

/// LibTorch's messages carry a C++ stack trace after the first lines; the reason stands before it.
fn first_line(message: &str) -> String {
    let reason = message.split("\nException raised from").next().unwrap_or(message);
    reason.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_trace_of_an_exception_is_left_out() {
        let what = "expected Half\nException raised from f at x.cpp:3\nframe #0";
        assert_eq!(first_line(what), "expected Half");
        assert_eq!(first_line("plain"), "plain");
    }

    #[test]
    fn a_call_that_went_well_is_no_error() {
        assert_eq!(check(0), Ok(()));
    }
}
