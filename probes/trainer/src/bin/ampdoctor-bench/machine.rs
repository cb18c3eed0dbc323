//! Where a measurement was made.

/// The processor's name and how many of its cores there are.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores", processor())
}

fn processor() -> String {
    // Linux alone has this file; elsewhere the architecture has to do.
    let named = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned()))
    });
    named.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
