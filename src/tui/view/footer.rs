//! The keys that do something on the page that is shown.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::View;
use crate::tui::keys::{Action, BINDINGS, Binding};
use crate::tui::ui::{Page, Scans};

/// Draws the footer; what does not fit is left out before the last two, help and quit.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) {
    let mut shown: Vec<&Binding> = BINDINGS.iter().filter(|b| b.footer.is_some() && applies(b.action, view)).collect();
    let width = |bindings: &[&Binding]| bindings.iter().map(|b| text(b, view).width()).sum::<usize>();
    while shown.len() > 2 && width(&shown) > usize::from(area.width) + 2 {
        shown.remove(shown.len() - 3);
    }
    let spans: Vec<Span> = shown.into_iter().flat_map(|binding| text(binding, view).spans).collect();
    frame.render_widget(Line::from(spans), area);
}

fn text(binding: &Binding, view: &View) -> Line<'static> {
    let word = match binding.action {
        Action::Earlier if view.ui.page == Page::WhatIf => "lower scale",
        Action::WhatIf if view.ui.page == Page::WhatIf => "overview",
        Action::Pause if view.held.is_some() => "go on",
        Action::MergeRanks if view.ui.all_ranks => "one rank",
        Action::SwitchPanel if view.ui.page != Page::Overview => "tensor",
        Action::Tensors if view.ui.page != Page::Overview => match view.ui.scans {
            Scans::Recent => "whole run",
            Scans::Run => "latest",
        },
        _ => binding.footer.unwrap_or_default(),
    };
    Line::from(vec![Span::styled(key_label(binding.label, view), view.theme.key()), Span::raw(format!(" {word}  "))])
}

/// Whether a key does something on the page that is shown.
fn applies(action: Action, view: &View) -> bool {
    let overview = view.ui.page == Page::Overview;
    let layer = matches!(view.ui.page, Page::Layer(_));
    let whatif = view.ui.page == Page::WhatIf;
    match action {
        Action::Output => view.output.is_some(),
        Action::Back => !overview,
        Action::NextLayer => layer,
        Action::Earlier => overview || layer || whatif,
        Action::NextRank => !view.snapshot.ranks.is_empty(),
        Action::MergeRanks => layer && !view.snapshot.ranks.is_empty(),
        Action::SwitchPanel | Action::Tensors => overview || layer,
        Action::Open | Action::Sort | Action::Filter => overview,
        _ => true,
    }
}

/// Arrows in ASCII.
const ARROWS: [(char, &str); 4] = [('↑', "Up"), ('↓', "Dn"), ('←', "Left"), ('→', "Right")];

/// A key as the terminal can write it.
pub fn key_label(label: &str, view: &View) -> String {
    if view.theme.unicode {
        label.to_owned()
    } else {
        ARROWS.iter().fold(label.to_owned(), |label, (arrow, word)| label.replace(*arrow, word))
    }
}
