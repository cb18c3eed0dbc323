//! The command line of ampdoctor.

fn main() {}
