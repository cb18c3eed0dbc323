//! What the user is looking at: page, panel, selection. Knows nothing of how it is drawn.

use super::keys::Action;
use super::state::{Layer, Snapshot, Sort, same_finding};
use crate::rules::Finding;

/// A screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Page {
    /// Charts, layers and findings.
    #[default]
    Overview,
    /// One layer, by its path.
    Layer(String),
    /// One finding.
    Finding(Box<Finding>),
    /// The end of what the command printed.
    Output,
    /// What was sampled, what it cost, what was lost.
    Instrument,
}

/// A panel of the overview that can have the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panel {
    /// The table of layers.
    #[default]
    Layers,
    /// The findings.
    Findings,
}

/// Something in front of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// The keys, and how to read the screen.
    Help,
    /// The question what becomes of the command that is running.
    Quit,
}

/// Which tensors the strip of a layer shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tensors {
    /// Gradients as they are held, times the loss scale.
    #[default]
    Gradients,
    /// Activations.
    Activations,
}

impl Tensors {
    /// The name shown in the table's title.
    pub fn name(self) -> &'static str {
        match self {
            Tensors::Gradients => "gradients",
            Tensors::Activations => "activations",
        }
    }
}

/// What a frame turned out to hold; draws tell it, scrolling needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Lines of the page that do not fit.
    pub scroll_max: usize,
    /// Lines that a page key moves by.
    pub page: usize,
}

/// What the user is looking at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ui {
    /// The screen.
    pub page: Page,
    /// The panel that has the keys.
    pub panel: Panel,
    /// What stands in front of it.
    pub overlay: Option<Overlay>,
    /// The order of the layers.
    pub sort: Sort,
    /// What the strips show.
    pub tensors: Tensors,
    /// The selected layer; the first one until the user moves, whichever that is.
    pub layer: Option<String>,
    /// The selected finding; the first one until the user moves.
    pub finding: Option<Finding>,
    /// Lines scrolled down in a page that is longer than the screen.
    pub scroll: usize,
    /// Lines scrolled down in what stands in front of the page.
    pub overlay_scroll: usize,
    /// What the last frame held.
    pub extent: Extent,
}

impl Ui {
    /// The layers in the order of the table, and the place of the selected one.
    pub fn sorted_layers<'a>(&self, snapshot: &'a Snapshot) -> (Vec<&'a Layer>, usize) {
        let sorted = self.sort.apply(&snapshot.layers);
        let selected = self.layer.as_ref().and_then(|path| sorted.iter().position(|l| l.path == *path));
        (sorted, selected.unwrap_or(0))
    }

    /// The place of the selected finding.
    pub fn selected_finding(&self, snapshot: &Snapshot) -> usize {
        let found = &snapshot.findings.found;
        self.finding.as_ref().and_then(|f| found.iter().position(|g| same_finding(f, g))).unwrap_or(0)
    }

    /// Does what a key means, where that concerns only what is looked at.
    pub fn act(&mut self, action: Action, snapshot: &Snapshot) {
        match action {
            Action::Up => self.step(-1, snapshot),
            Action::Down => self.step(1, snapshot),
            Action::PageUp => self.step(-(self.extent.page.max(1) as isize), snapshot),
            Action::PageDown => self.step(self.extent.page.max(1) as isize, snapshot),
            Action::First => self.step(isize::MIN / 2, snapshot),
            Action::Last => self.step(isize::MAX / 2, snapshot),
            Action::SwitchPanel => self.switch_panel(),
            Action::Open => self.open(snapshot),
            Action::Back => self.back(),
            Action::Sort => self.sort = self.sort.next(),
            Action::Tensors => self.switch_tensors(),
            Action::Output => self.show(Page::Output),
            Action::Instrument => self.show(Page::Instrument),
            Action::Help => self.toggle_help(),
            Action::Pause | Action::Quit | Action::Suspend => {}
        }
    }

    fn toggle_help(&mut self) {
        self.overlay = if self.overlay.is_some() { None } else { Some(Overlay::Help) };
        self.overlay_scroll = 0;
    }

    fn switch_panel(&mut self) {
        self.panel = match self.panel {
            Panel::Layers => Panel::Findings,
            Panel::Findings => Panel::Layers,
        };
    }

    fn switch_tensors(&mut self) {
        self.tensors = match self.tensors {
            Tensors::Gradients => Tensors::Activations,
            Tensors::Activations => Tensors::Gradients,
        };
    }

    /// Shows a page, or leaves it when it is the one that is shown.
    fn show(&mut self, page: Page) {
        self.page = if self.page == page { Page::Overview } else { page };
        self.scroll = if self.page == Page::Output { usize::MAX } else { 0 };
    }

    fn back(&mut self) {
        if self.overlay.take().is_none() {
            self.page = Page::Overview;
            self.scroll = 0;
        }
    }

    fn open(&mut self, snapshot: &Snapshot) {
        if self.page != Page::Overview {
            return;
        }
        let page = match self.panel {
            Panel::Layers => {
                let (sorted, at) = self.sorted_layers(snapshot);
                sorted.get(at).map(|layer| Page::Layer(layer.path.clone()))
            }
            Panel::Findings => {
                snapshot.findings.found.get(self.selected_finding(snapshot)).map(|f| Page::Finding(Box::new(f.clone())))
            }
        };
        if let Some(page) = page {
            self.show(page);
        }
    }

    fn step(&mut self, by: isize, snapshot: &Snapshot) {
        if self.overlay.is_some() {
            self.overlay_scroll = self.overlay_scroll.saturating_add_signed(by).min(200);
            return;
        }
        match (&self.page, self.panel) {
            (Page::Overview, Panel::Layers) => {
                let (sorted, at) = self.sorted_layers(snapshot);
                self.layer = sorted.get(moved(at, by, sorted.len())).map(|l| l.path.clone());
            }
            (Page::Overview, Panel::Findings) => {
                let found = &snapshot.findings.found;
                self.finding = found.get(moved(self.selected_finding(snapshot), by, found.len())).cloned();
            }
            _ => self.scroll = moved(self.scroll.min(self.extent.scroll_max), by, self.extent.scroll_max + 1),
        }
    }
}

fn moved(at: usize, by: isize, length: usize) -> usize {
    at.saturating_add_signed(by).min(length.saturating_sub(1))
}
