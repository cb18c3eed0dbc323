//! `ampdoctor whatif`: other loss scales and formats, without training again.

use anyhow::bail;

use super::args::WhatifArgs;
use super::exit::Exit;
use super::load::{load, with_hint};
use super::terminal::Terminal;
use crate::report::{Selection, consequence_text, nearest, whatif_json, whatif_text};
use crate::rules::whatif::WhatIf;
use crate::rules::{OfRank, Policy};
use crate::tui::shows_unicode;

pub(super) fn whatif(args: WhatifArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    let recording = load(&args.run, &Policy::default(), terminal).map_err(with_hint)?;
    let run = recording.run();
    let aggregates: Vec<_> = run.ranks.iter().map(|rank| rank.aggregate).collect();
    let (whatif, left_over) = (WhatIf::of(&aggregates), run.left_over());
    for rank in &left_over {
        terminal.warn(&format!("rank {rank} is left from an earlier run, and is left out"));
    }
    for OfRank { rank, item } in run.across().iter().filter(|of| !left_over.contains(&of.rank)) {
        terminal.warn(&format!(
            "rank {rank} is not as the others, and what follows is of all together: {}",
            consequence_text(item)
        ));
    }
    let selection = Selection { scale: args.scale, layers: args.layer };
    if let Some(typed) = selection.layers.as_deref().filter(|_| !shows_any(&whatif, &selection)) {
        bail!("{}", no_such_layer(typed, &whatif));
    }
    terminal.print(&match args.format.as_str() {
        "json" => whatif_json(&whatif, &selection),
        _ => whatif_text(&whatif, &selection, &terminal.layout, shows_unicode()),
    })?;
    Ok(Exit::Success)
}

fn layers<'a>(whatif: &'a WhatIf<'_>) -> impl Iterator<Item = &'a str> {
    whatif.layers.iter().map(|layer| layer.layer).chain(whatif.formats.iter().map(|layer| layer.layer))
}

fn shows_any(whatif: &WhatIf<'_>, selection: &Selection) -> bool {
    layers(whatif).any(|layer| selection.shows(layer))
}

fn no_such_layer(typed: &str, whatif: &WhatIf<'_>) -> String {
    let hint = nearest(typed, layers(whatif)).map_or(String::new(), |name| format!(" Did you mean {name}?"));
    format!("no layer matches {typed}.{hint} Put a pattern in quotes, or the shell takes its stars.")
}
