//! Sites as the recording has them, put together in memory that is used again.

use std::fmt::Write;

use ampdoctor::observation::{Probe, Site, SiteId};
use ampdoctor::scan::Dtype;

use super::layers::{LayerId, Layers};
use super::names::{NameId, Names};

/// Uses of one operator in one layer that are told apart; later ones share the last name.
const MAX_USES: u32 = 32;

/// Numbers sites.
pub(super) struct Sites<'a, F> {
    layers: &'a Layers,
    names: &'a Names,
    intern: F,
    /// The site that is asked for.
    site: Site,
}

impl<'a, F: FnMut(&Site) -> SiteId> Sites<'a, F> {
    pub fn new(layers: &'a Layers, names: &'a Names, intern: F) -> Self {
        let (layer, operator, tensor) = Default::default();
        Self {
            layers,
            names,
            intern,
            site: Site { layer, operator, tensor, probe: Probe::Activation, dtype: Dtype::F32 },
        }
    }

    /// The number of a site.
    pub fn of(&mut self, layer: LayerId, operator: &str, tensor: &str, probe: Probe, dtype: Dtype) -> SiteId {
        self.begin(layer, operator, probe, dtype);
        self.site.tensor.push_str(tensor);
        (self.intern)(&self.site)
    }

    /// That of an operator, whose name says how often its layer has used its kind.
    pub fn of_operator(&mut self, layer: LayerId, name: NameId, uses: u32, probe: Probe, dtype: Dtype) -> SiteId {
        self.begin(layer, self.names.get(name), probe, dtype);
        number(&mut self.site.operator, uses);
        (self.intern)(&self.site)
    }

    fn begin(&mut self, layer: LayerId, operator: &str, probe: Probe, dtype: Dtype) {
        let site = &mut self.site;
        site.layer.clear();
        site.layer.push_str(self.layers.name(layer));
        site.operator.clear();
        site.operator.push_str(operator);
        site.tensor.clear();
        (site.probe, site.dtype) = (probe, dtype);
    }
}

/// Adds to a name which use it is, where it is not the first: `relu`, `relu#2`.
fn number(name: &mut String, uses: u32) {
    let added = match uses {
        0 | 1 => Ok(()),
        2..MAX_USES => write!(name, "#{uses}"),
        _ => write!(name, "#{MAX_USES}+"),
    };
    added.expect("a String takes what is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_use_of_an_operator_is_numbered_and_the_many_share_a_name() {
        let numbered = |uses| {
            let mut name = "relu".to_owned();
            number(&mut name, uses);
            name
        };
        assert_eq!([0, 1, 2, 500].map(numbered), ["relu", "relu", "relu#2", "relu#32+"]);
    }

    #[test]
    fn nothing_of_one_site_is_left_in_the_next() {
        let (mut layers, mut names) = (Layers::default(), Names::default());
        let (fc, relu) = (layers.intern("block.fc"), names.intern("relu"));
        let mut asked = Vec::new();
        let mut sites = Sites::new(&layers, &names, |site: &Site| {
            asked.push(site.clone());
            SiteId(0)
        });
        sites.of_operator(fc, relu, 3, Probe::ActivationGrad, Dtype::F16);
        sites.of(fc, "", "weight", Probe::Param, Dtype::F32);
        sites.of_operator(super::super::layers::INPUT, relu, 1, Probe::Activation, Dtype::F16);
        let told: Vec<_> = asked.iter().map(|s| (s.label(), s.probe, s.dtype)).collect();
        assert_eq!(told[0], ("block.fc/relu#3".into(), Probe::ActivationGrad, Dtype::F16));
        assert_eq!(told[1], ("block.fc.weight".into(), Probe::Param, Dtype::F32));
        assert_eq!(told[2], ("input/relu".into(), Probe::Activation, Dtype::F16));
    }
}
