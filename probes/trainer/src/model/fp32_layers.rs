//! The layers that are kept in FP32 while the rest of the model computes in 16 bits.

use super::ModelKind;

/// Layers, or modules with all that is in them, that are kept in FP32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fp32Layers {
    paths: Vec<String>,
}

/// The model has no such layer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model has no layer {layer:?}{}; its layers are {}", did_you_mean(.layer, .layers), .layers.join(", "))]
pub struct UnknownLayer {
    /// What was typed.
    pub layer: String,
    /// The layers that there are.
    pub layers: &'static [&'static str],
}

impl Fp32Layers {
    /// No layer.
    pub fn none() -> Self {
        Self::default()
    }

    /// These layers of a model, each by its own path or by that of a module around it.
    pub fn of(model: ModelKind, names: &[String]) -> Result<Self, UnknownLayer> {
        let layers = model.layers();
        match names.iter().find(|name| !layers.iter().any(|layer| is_within(layer, name))) {
            Some(unknown) => Err(UnknownLayer { layer: unknown.clone(), layers }),
            None => Ok(Self { paths: names.to_vec() }),
        }
    }

    /// Whether what stands at this path is kept in FP32: by itself, or with a module around it.
    pub fn covers(&self, path: &str) -> bool {
        self.paths.iter().any(|around| is_within(path, around))
    }

    /// The paths, as they were given.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }
}

/// Whether a path is `around`, or within it.
fn is_within(path: &str, around: &str) -> bool {
    path.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn did_you_mean(typed: &str, layers: &[&str]) -> String {
    let near = |layer: &&&str| strsim::damerau_levenshtein(typed, layer) <= typed.chars().count().max(3) / 3;
    let nearest = layers.iter().filter(near).min_by_key(|layer| strsim::damerau_levenshtein(typed, layer));
    nearest.map_or(String::new(), |name| format!(" (did you mean {name:?}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(model: ModelKind, names: &str) -> Result<Fp32Layers, String> {
        let names: Vec<String> = names.split(',').map(str::to_owned).collect();
        Fp32Layers::of(model, &names).map_err(|error| error.to_string())
    }

    #[test]
    fn a_layer_is_covered_by_its_own_name_and_by_a_module_around_it() {
        let kept = layers(ModelKind::Transformer, "block.1,block.0.mlp.up").unwrap();
        let covered: Vec<&str> =
            ModelKind::Transformer.layers().iter().copied().filter(|layer| kept.covers(layer)).collect();
        assert_eq!(covered.len(), 7, "{covered:?}");
        assert!(kept.covers("block.1.attn") && !kept.covers("block.0.mlp.down") && !kept.covers("block.0"));
        assert!(!Fp32Layers::none().covers("fc1"));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_and_with_all() {
        assert_eq!(
            layers(ModelKind::Conv, "fc1,conv3").unwrap_err(),
            "the model has no layer \"conv3\" (did you mean \"conv1\"?); its layers are conv1, bn1, conv2, bn2, fc1, fc2"
        );
        // A part of a name is none.
        assert!(layers(ModelKind::Transformer, "block.0.mlp.u").is_err());
        assert_eq!(
            layers(ModelKind::Mlp, "head").unwrap_err(),
            "the model has no layer \"head\"; its layers are fc1, fc2, fc3"
        );
    }
}
