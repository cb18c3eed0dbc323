//! The sites that a recording has defined so far.

use crate::observation::Site;

/// The sites defined so far, by number: asked for each observation.
#[derive(Debug, Default)]
pub(in crate::recording) struct Sites(Vec<Option<Box<Site>>>);

impl Sites {
    /// Whether the site was defined.
    pub(super) fn has(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    /// The site, where it was defined.
    pub(super) fn get(&self, number: u32) -> Option<&Site> {
        self.0.get(number as usize)?.as_deref()
    }

    /// Defines a site. The table grows to its number, which is below [`MAX_SITES`](super::MAX_SITES).
    pub(super) fn define(&mut self, number: u32, site: Site) {
        let at = number as usize;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        if let Some(place) = self.0.get_mut(at) {
            *place = Some(Box::new(site));
        }
    }
}
