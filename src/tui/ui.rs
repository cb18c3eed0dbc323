//! What the user is looking at: page, panel, selection. Knows nothing of how it is drawn.

use super::keys::{Action, Edit};
use super::state::{Filter, Layer, LayerDetail, Snapshot, Sort, same_finding};
use crate::observation::{Probe, Site};
use crate::rules::Finding;
use crate::rules::whatif::SCALES;
use crate::scan::Dtype;

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
    /// A line on every rank.
    Ranks,
    /// Other loss scales and formats.
    WhatIf,
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

/// The part of the run by which the arrow keys move the cursor.
const PART_OF_THE_RUN: i64 = 50;

/// Which scans the chart of exponents of a layer is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scans {
    /// The latest ones.
    #[default]
    Recent,
    /// Those of the whole run.
    Run,
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
    /// The rank that is shown; the worst one until the user chooses.
    pub rank: Option<u32>,
    /// Whether the page of a layer takes all ranks together.
    pub all_ranks: bool,
    /// The order of the layers.
    pub sort: Sort,
    /// Which layers are shown.
    pub filter: Filter,
    /// Whether the keys write the text of the filter.
    pub writes_filter: bool,
    /// What the strips show.
    pub tensors: Tensors,
    /// What the chart of a layer shows.
    pub scans: Scans,
    /// The tensor of a layer that the user chose, by kind and name; it stays chosen from layer to layer.
    pub tensor: Option<(Probe, String)>,
    /// The step whose numbers are shown in the charts; the latest one where it is none.
    pub cursor: Option<u64>,
    /// The exponent of the loss scale at which what-if shows the layers; that in force until the user moves.
    pub scale: Option<i32>,
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
        let sorted = self.filter.apply(self.sort, &snapshot.layers);
        let selected = self.layer.as_ref().and_then(|path| sorted.iter().position(|l| l.path == *path));
        (sorted, selected.unwrap_or(0))
    }

    /// The place of the selected finding.
    pub fn selected_finding(&self, snapshot: &Snapshot) -> usize {
        let found = &snapshot.findings.found;
        self.finding.as_ref().and_then(|f| found.iter().position(|g| same_finding(f, g))).unwrap_or(0)
    }

    /// The place of the tensor that a layer shows: the one the user chose, else one of that kind; before that the one of the layer's gravest finding,
    /// else a gradient as FP16 holds it.
    pub fn selected_tensor(&self, detail: &LayerDetail) -> usize {
        let place = |is: &dyn Fn(&Site) -> bool| detail.tensors.iter().position(|tensor| is(&tensor.site));
        if let Some((probe, name)) = &self.tensor {
            let same = |site: &Site| site.probe == *probe && name_of(site) == name;
            return place(&same).or_else(|| place(&|site| site.probe == *probe)).unwrap_or(0);
        }
        let finding = detail.findings.iter().map(|told| &told.finding).find(|f| f.probe.is_some());
        let blamed = finding.and_then(|f| {
            let of_its_kind = |site: &Site| Some(site.probe) == f.probe;
            place(&|site| of_its_kind(site) && site.operator == f.operator).or_else(|| place(&of_its_kind))
        });
        let in_fp16 = || place(&|site| site.probe == Probe::ActivationGrad && site.dtype == Dtype::F16);
        let gradient = || place(&|site| site.probe == Probe::ActivationGrad);
        blamed.or_else(in_fp16).or_else(gradient).or_else(|| place(&|site| site.probe.is_gradient())).unwrap_or(0)
    }

    /// Does what a key means, where that concerns only what is looked at. `detail` is that of the layer whose page is shown.
    pub fn act(&mut self, action: Action, snapshot: &Snapshot, detail: Option<&LayerDetail>) {
        match action {
            Action::Up => self.step(-1, snapshot),
            Action::Down => self.step(1, snapshot),
            Action::PageUp => self.step(-(self.extent.page.max(1) as isize), snapshot),
            Action::PageDown => self.step(self.extent.page.max(1) as isize, snapshot),
            Action::First => self.step(isize::MIN / 2, snapshot),
            Action::Last => self.step(isize::MAX / 2, snapshot),
            Action::SwitchPanel => self.switch(1, detail),
            Action::SwitchBack => self.switch(-1, detail),
            Action::Open => self.open(snapshot),
            Action::Back => self.back(),
            Action::NextLayer => self.turn(1, snapshot),
            Action::PreviousLayer => self.turn(-1, snapshot),
            Action::Earlier => self.scrub(-PART_OF_THE_RUN, snapshot),
            Action::Later => self.scrub(PART_OF_THE_RUN, snapshot),
            Action::StepBack => self.scrub(-1, snapshot),
            Action::StepOn => self.scrub(1, snapshot),
            Action::Sort => self.sort = self.sort.moved(1),
            Action::SortBack => self.sort = self.sort.moved(-1),
            Action::Filter => self.write_filter(),
            Action::WithFindings => self.filter.with_findings = !self.filter.with_findings,
            Action::Tensors => self.switch_tensors(),
            Action::WhatIf => self.show(Page::WhatIf),
            Action::Output => self.show(Page::Output),
            Action::Instrument => self.show(Page::Instrument),
            Action::NextRank => self.next_rank(snapshot),
            Action::Ranks => self.show(Page::Ranks),
            Action::MergeRanks => self.merge_ranks(snapshot),
            Action::Help => self.toggle_help(),
            Action::Pause | Action::Quit | Action::Suspend => {}
        }
    }

    fn toggle_help(&mut self) {
        self.overlay = if self.overlay.is_some() { None } else { Some(Overlay::Help) };
        self.overlay_scroll = 0;
    }

    /// The rank after the one that is shown, after the last the first.
    fn next_rank(&mut self, snapshot: &Snapshot) {
        let numbers: Vec<u32> = snapshot.ranks.iter().map(|rank| rank.number).collect();
        let at = numbers.iter().position(|number| Some(*number) == snapshot.rank);
        let next = at.and_then(|at| numbers.get(at + 1)).or(numbers.first());
        self.rank = next.copied();
        self.all_ranks = false;
    }

    /// Takes all ranks together in the page of a layer, where there are several.
    fn merge_ranks(&mut self, snapshot: &Snapshot) {
        if !snapshot.ranks.is_empty() && matches!(self.page, Page::Layer(_)) {
            self.all_ranks = !self.all_ranks;
        }
    }

    /// The next panel of the overview, or the next tensor of a layer.
    fn switch(&mut self, by: isize, detail: Option<&LayerDetail>) {
        if let (Page::Layer(_), Some(detail)) = (&self.page, detail) {
            let at = self.selected_tensor(detail) as isize;
            let next = (at + by).rem_euclid(detail.tensors.len().max(1) as isize);
            let site = detail.tensors.get(next as usize).map(|tensor| &tensor.site);
            self.tensor = site.map(|site| (site.probe, name_of(site).to_owned()));
            return;
        }
        self.panel = match self.panel {
            Panel::Layers => Panel::Findings,
            Panel::Findings => Panel::Layers,
        };
    }

    /// The page of the next layer in the order of the table.
    fn turn(&mut self, by: isize, snapshot: &Snapshot) {
        let Page::Layer(path) = &self.page else { return };
        let (sorted, _) = self.sorted_layers(snapshot);
        let at = sorted.iter().position(|layer| layer.path == *path);
        let next = sorted.get(at.map_or(0, |at| moved(at, by, sorted.len()))).map(|layer| layer.path.clone());
        if let Some(next) = next {
            self.layer = Some(next.clone());
            self.page = Page::Layer(next);
            self.scroll = 0;
        }
    }

    /// Moves the cursor by a point of the charts, or by a part of the run where that is more.
    fn scrub(&mut self, by: i64, snapshot: &Snapshot) {
        if self.page == Page::WhatIf {
            let now = self.scale.unwrap_or_else(|| snapshot.loss_scale_exponent());
            self.scale = Some((now + by.signum() as i32).clamp(*SCALES.start(), *SCALES.end()));
            return;
        }
        let Some((first, last)) = snapshot.charts.steps else { return };
        let point = snapshot.charts.stride.max(1);
        let stride = if by.abs() == 1 { point } else { ((last - first) / by.unsigned_abs()).max(point) };
        let at = self.cursor.unwrap_or(last).clamp(first, last);
        self.cursor = match by > 0 {
            true => Some(at.saturating_add(stride)).filter(|at| *at <= last),
            false => Some(at.saturating_sub(stride).max(first)),
        };
    }

    /// Lets the keys write the filter, where the table is seen.
    fn write_filter(&mut self) {
        (self.page, self.panel, self.overlay) = (Page::Overview, Panel::Layers, None);
        self.writes_filter = true;
    }

    /// Takes a key that writes the filter.
    pub fn edit(&mut self, edit: Edit, snapshot: &Snapshot) {
        match edit {
            Edit::Insert(c) => self.filter.text.push(c),
            Edit::Delete => drop(self.filter.text.pop()),
            Edit::Clear => self.filter.text.clear(),
            Edit::Keep => self.writes_filter = false,
            Edit::Leave => {
                self.filter.text.clear();
                self.writes_filter = false;
            }
            Edit::Move(by) => self.step(by, snapshot),
        }
    }

    fn switch_tensors(&mut self) {
        if matches!(self.page, Page::Layer(_)) {
            self.scans = match self.scans {
                Scans::Recent => Scans::Run,
                Scans::Run => Scans::Recent,
            };
            return;
        }
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
        if self.overlay.take().is_some() || self.cursor.take().is_some() {
            return;
        }
        // On the overview it takes the filter away, which is all that can be gone back from there.
        if self.page == Page::Overview {
            self.filter = Filter::default();
        }
        self.page = Page::Overview;
        self.scroll = 0;
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

/// The name of a tensor within its layer.
fn name_of(site: &Site) -> &str {
    if site.tensor.is_empty() { &site.operator } else { &site.tensor }
}

fn moved(at: usize, by: isize, length: usize) -> usize {
    at.saturating_add_signed(by).min(length.saturating_sub(1))
}
