//! The command line of ampdoctor.

use std::process::ExitCode;

fn main() -> ExitCode {
    ampdoctor::cli::main()
}
