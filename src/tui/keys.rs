//! The keys: one table that makes dispatch, footer and help.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Selects the row above, or scrolls.
    Up,
    /// Selects the row below, or scrolls.
    Down,
    /// Moves up by a screen.
    PageUp,
    /// Moves down by a screen.
    PageDown,
    /// Moves to the start.
    First,
    /// Moves to the end.
    Last,
    /// Gives the keys to the other panel; in a layer shows the next tensor.
    SwitchPanel,
    /// The same backwards.
    SwitchBack,
    /// Opens the selected layer or finding.
    Open,
    /// Closes what was opened.
    Back,
    /// Stops the picture, or lets it go on.
    Pause,
    /// Shows the next layer while one is shown.
    NextLayer,
    /// Shows the layer before.
    PreviousLayer,
    /// Changes the order of the layers.
    Sort,
    /// Changes it backwards.
    SortBack,
    /// Lets the keys write the filter of the layers.
    Filter,
    /// Shows only layers with findings, or all.
    WithFindings,
    /// Changes between gradients and activations in the strips; in a layer between the latest scans and the whole run.
    Tensors,
    /// Shows the next rank.
    NextRank,
    /// Shows a line on every rank.
    Ranks,
    /// Takes all ranks together in a layer, or goes back to one.
    MergeRanks,
    /// Moves the cursor along the charts to an earlier step.
    Earlier,
    /// To a later one; past the end there is no cursor.
    Later,
    /// One step back.
    StepBack,
    /// One step on.
    StepOn,
    /// Shows what the command printed.
    Output,
    /// Shows what other loss scales and formats would make of the run.
    WhatIf,
    /// Shows what was sampled and lost.
    Instrument,
    /// Shows the help.
    Help,
    /// Leaves.
    Quit,
    /// Stops the program as the shell's job control does.
    Suspend,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The keys that mean it, with Ctrl where told.
    pub keys: &'static [(KeyCode, bool)],
    /// How the keys are written.
    pub label: &'static str,
    /// What they do.
    pub action: Action,
    /// One word for the footer, for those that stand there.
    pub footer: Option<&'static str>,
    /// One line for the help; a second key for the same thing has none.
    pub help: &'static str,
}

const fn plain(code: KeyCode) -> (KeyCode, bool) {
    (code, false)
}

const fn ctrl(c: char) -> (KeyCode, bool) {
    (KeyCode::Char(c), true)
}

/// All keys, in the order of the help.
pub const BINDINGS: &[Binding] = &[
    Binding {
        keys: &[plain(KeyCode::Up), plain(KeyCode::Char('k'))],
        label: "↑ k",
        action: Action::Up,
        footer: None,
        help: "the row above, or scroll up",
    },
    Binding {
        keys: &[plain(KeyCode::Down), plain(KeyCode::Char('j'))],
        label: "↓ j",
        action: Action::Down,
        footer: Some("move"),
        help: "the row below, or scroll down",
    },
    Binding {
        keys: &[plain(KeyCode::PageUp), ctrl('u')],
        label: "PgUp ^U",
        action: Action::PageUp,
        footer: None,
        help: "a screen up",
    },
    Binding {
        keys: &[plain(KeyCode::PageDown), ctrl('d')],
        label: "PgDn ^D",
        action: Action::PageDown,
        footer: None,
        help: "a screen down",
    },
    Binding {
        keys: &[plain(KeyCode::Home), plain(KeyCode::Char('g'))],
        label: "Home g",
        action: Action::First,
        footer: None,
        help: "the first row",
    },
    Binding {
        keys: &[plain(KeyCode::End), plain(KeyCode::Char('G'))],
        label: "End G",
        action: Action::Last,
        footer: None,
        help: "the last row",
    },
    Binding {
        keys: &[plain(KeyCode::Tab)],
        label: "Tab",
        action: Action::SwitchPanel,
        footer: Some("panel"),
        help: "layers or findings; in a layer its next tensor",
    },
    Binding {
        keys: &[plain(KeyCode::BackTab)],
        label: "S-Tab",
        action: Action::SwitchBack,
        footer: None,
        help: "the same backwards",
    },
    Binding {
        keys: &[plain(KeyCode::Enter), plain(KeyCode::Char('l'))],
        label: "Enter",
        action: Action::Open,
        footer: Some("open"),
        help: "open the selected layer or finding",
    },
    Binding {
        keys: &[plain(KeyCode::Esc), plain(KeyCode::Backspace), plain(KeyCode::Char('h'))],
        label: "Esc",
        action: Action::Back,
        footer: Some("back"),
        help: "back",
    },
    Binding {
        keys: &[plain(KeyCode::Char(' '))],
        label: "Space",
        action: Action::Pause,
        footer: Some("pause"),
        help: "hold the picture, or let it go on; the run is read on meanwhile",
    },
    Binding {
        keys: &[plain(KeyCode::Char('n'))],
        label: "n",
        action: Action::NextLayer,
        footer: Some("next"),
        help: "in a layer: the next one in the order of the table",
    },
    Binding {
        keys: &[plain(KeyCode::Char('p'))],
        label: "p",
        action: Action::PreviousLayer,
        footer: None,
        help: "in a layer: the one before",
    },
    Binding {
        keys: &[plain(KeyCode::Char('s'))],
        label: "s",
        action: Action::Sort,
        footer: Some("sort"),
        help: "sort by trouble, model, lost or fading, gradient, headroom, name",
    },
    Binding {
        keys: &[plain(KeyCode::Char('S'))],
        label: "S",
        action: Action::SortBack,
        footer: None,
        help: "the same backwards",
    },
    Binding {
        keys: &[plain(KeyCode::Char('/'))],
        label: "/",
        action: Action::Filter,
        footer: Some("filter"),
        help: "layers with this text in their name; Enter keeps it, Esc ends it",
    },
    Binding {
        keys: &[plain(KeyCode::Char('f'))],
        label: "f",
        action: Action::WithFindings,
        footer: None,
        help: "show only layers with findings, or all",
    },
    Binding {
        keys: &[plain(KeyCode::Char('t'))],
        label: "t",
        action: Action::Tensors,
        footer: Some("tensors"),
        help: "FP16 window of gradients or activations; in a layer: all scans",
    },
    Binding {
        keys: &[plain(KeyCode::Char('w'))],
        label: "w",
        action: Action::WhatIf,
        footer: Some("what-if"),
        help: "what-if: other loss scales and formats; the arrows choose the scale",
    },
    Binding {
        keys: &[plain(KeyCode::Char('r'))],
        label: "r",
        action: Action::NextRank,
        footer: Some("rank"),
        help: "the next rank, where there are several; at first the worst is shown",
    },
    Binding {
        keys: &[plain(KeyCode::Char('R'))],
        label: "R",
        action: Action::Ranks,
        footer: None,
        help: "a line on every rank, and where they do not do the same",
    },
    Binding {
        keys: &[plain(KeyCode::Char('m'))],
        label: "m",
        action: Action::MergeRanks,
        footer: Some("all ranks"),
        help: "in a layer: all ranks taken together, or one",
    },
    Binding {
        keys: &[plain(KeyCode::Left)],
        label: "←",
        action: Action::Earlier,
        footer: Some("earlier"),
        help: "the numbers of an earlier step, a fiftieth of the run back; Esc ends it",
    },
    Binding {
        keys: &[plain(KeyCode::Right)],
        label: "→",
        action: Action::Later,
        footer: None,
        help: "of a later step; past the end that of the latest",
    },
    Binding {
        keys: &[plain(KeyCode::Char(','))],
        label: ",",
        action: Action::StepBack,
        footer: None,
        help: "of the step before",
    },
    Binding {
        keys: &[plain(KeyCode::Char('.'))],
        label: ".",
        action: Action::StepOn,
        footer: None,
        help: "of the step after",
    },
    Binding {
        keys: &[plain(KeyCode::Char('o'))],
        label: "o",
        action: Action::Output,
        footer: Some("output"),
        help: "what the command printed",
    },
    Binding {
        keys: &[plain(KeyCode::Char('i'))],
        label: "i",
        action: Action::Instrument,
        footer: None,
        help: "the instrument: sampling, cost, what was lost, notes",
    },
    Binding {
        keys: &[plain(KeyCode::Char('?')), plain(KeyCode::F(1))],
        label: "?",
        action: Action::Help,
        footer: Some("help"),
        help: "this help",
    },
    Binding {
        keys: &[plain(KeyCode::Char('q')), ctrl('c')],
        label: "q ^C",
        action: Action::Quit,
        footer: Some("quit"),
        help: "quit; asks first while a command runs",
    },
    Binding { keys: &[ctrl('z')], label: "^Z", action: Action::Suspend, footer: None, help: "suspend" },
];

/// What a key does to a line of text that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Adds a character.
    Insert(char),
    /// Takes the last one away.
    Delete,
    /// Takes all away.
    Clear,
    /// The line is done.
    Keep,
    /// The line is given up.
    Leave,
    /// Moves the selection meanwhile.
    Move(isize),
}

/// What a key does to a line of text; the keys that end the program or suspend it do so there too, and are none of these.
pub fn edit(key: KeyEvent) -> Option<Edit> {
    let with_ctrl = key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    match (key.code, with_ctrl) {
        (KeyCode::Char(c), false) => Some(Edit::Insert(c)),
        (KeyCode::Char('u'), true) => Some(Edit::Clear),
        (KeyCode::Backspace, _) => Some(Edit::Delete),
        (KeyCode::Enter | KeyCode::Tab, _) => Some(Edit::Keep),
        (KeyCode::Esc, _) => Some(Edit::Leave),
        (KeyCode::Up, _) => Some(Edit::Move(-1)),
        (KeyCode::Down, _) => Some(Edit::Move(1)),
        _ => None,
    }
}

/// An answer to the question what becomes of the command that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Leave the dashboard; the command goes on.
    Leave,
    /// End the command, then leave.
    Stop,
    /// Stay.
    Stay,
}

/// The answers, with the key and the words of each.
pub const ANSWERS: &[(KeyCode, &str, Answer, &str)] = &[
    (KeyCode::Char('l'), "l", Answer::Leave, "leave it running and quit"),
    (KeyCode::Char('s'), "s", Answer::Stop, "stop it and quit (SIGTERM, after 10 s SIGKILL)"),
    (KeyCode::Esc, "Esc", Answer::Stay, "stay"),
];

/// What a key means.
pub fn action(key: KeyEvent) -> Option<Action> {
    let with_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
    let meant = |binding: &&Binding| binding.keys.iter().any(|&(code, ctrl)| code == key.code && ctrl == with_ctrl);
    BINDINGS.iter().find(meant).map(|binding| binding.action)
}

/// The answer that a key gives.
pub fn answer(key: KeyEvent) -> Option<Answer> {
    ANSWERS.iter().find(|(code, ..)| *code == key.code).map(|(_, _, answer, _)| *answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_key_means_two_things() {
        let keys: Vec<_> = BINDINGS.iter().flat_map(|b| b.keys).collect();
        let distinct: HashSet<_> = keys.iter().collect();
        assert_eq!(keys.len(), distinct.len());
    }

    #[test]
    fn every_key_of_the_table_is_dispatched_to_its_action() {
        for binding in BINDINGS {
            for &(code, ctrl) in binding.keys {
                let modifiers = if ctrl { KeyModifiers::CONTROL } else { KeyModifiers::NONE };
                assert_eq!(action(KeyEvent::new(code, modifiers)), Some(binding.action), "{}", binding.label);
            }
        }
    }

    #[test]
    fn a_plain_letter_is_not_its_ctrl_twin() {
        assert_eq!(action(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::NONE)), None);
        assert_eq!(action(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::CONTROL)), None);
        assert_eq!(action(KeyEvent::new(KeyCode::Char('G'), KeyModifiers::SHIFT)), Some(Action::Last));
    }

    #[test]
    fn every_action_has_one_row_with_help() {
        let actions: HashSet<_> = BINDINGS.iter().map(|b| b.action).collect();
        assert_eq!(actions.len(), BINDINGS.len());
        assert!(BINDINGS.iter().all(|b| !b.help.is_empty() && !b.label.is_empty()));
    }
}
