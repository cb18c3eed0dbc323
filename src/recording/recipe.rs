//! The events of the recipe, to bytes and back.

use super::decode::dtype;
use super::encode::dtype as encode_dtype;
use super::schema::{self, recipe_event::Kind};
use crate::observation::{Act, Product, RecipeEvent, Refusal};

pub(super) fn encode(event: &RecipeEvent) -> schema::RecipeEvent {
    let kind = match event.act.clone() {
        Act::Backward { holding, used, product } => {
            Kind::Backward(schema::BackwardBegan { holding, used, product: product.map(encode_product) })
        }
        Act::Multiplied { factor, gradients } => Kind::Multiplied(schema::GradientsMultiplied { factor, gradients }),
        Act::Clamped { limit, gradients } => Kind::Clamped(schema::GradientsClamped { limit, gradients }),
        Act::Cleared { gradients } => Kind::Cleared(schema::GradientsCleared { gradients }),
        Act::Stepped { parameters, stale, adaptive } => {
            Kind::Stepped(schema::ParametersStepped { parameters, stale, adaptive })
        }
        Act::Withheld { parameters, stale } => Kind::Withheld(schema::StepWithheld { parameters, stale }),
        Act::UpdatedAgain => Kind::UpdatedAgain(schema::UpdatedAgain {}),
        Act::HalfUnscaled { parameters } => Kind::HalfUnscaled(schema::HalfUnscaled { parameters }),
        Act::Refused { optimizer, refusal, parameters } => {
            Kind::Refused(schema::CallRefused { optimizer, refusal: encode_refusal(refusal).into(), parameters })
        }
    };
    schema::RecipeEvent { after: event.after, kind: Some(kind) }
}

/// `None` for an event that this version does not know.
pub(super) fn decode(event: schema::RecipeEvent) -> Option<RecipeEvent> {
    let act = match event.kind? {
        Kind::Backward(schema::BackwardBegan { holding, used, product }) => {
            Act::Backward { holding, used, product: product.and_then(decode_product) }
        }
        Kind::Multiplied(schema::GradientsMultiplied { factor, gradients }) => Act::Multiplied { factor, gradients },
        Kind::Clamped(schema::GradientsClamped { limit, gradients }) => Act::Clamped { limit, gradients },
        Kind::Cleared(schema::GradientsCleared { gradients }) => Act::Cleared { gradients },
        Kind::Stepped(schema::ParametersStepped { parameters, stale, adaptive }) => {
            Act::Stepped { parameters, stale, adaptive }
        }
        Kind::Withheld(schema::StepWithheld { parameters, stale }) => Act::Withheld { parameters, stale },
        Kind::UpdatedAgain(_) => Act::UpdatedAgain,
        Kind::HalfUnscaled(schema::HalfUnscaled { parameters }) => Act::HalfUnscaled { parameters },
        Kind::Refused(schema::CallRefused { optimizer, refusal, parameters }) => {
            Act::Refused { optimizer, refusal: decode_refusal(refusal)?, parameters }
        }
    };
    Some(RecipeEvent { after: event.after, act })
}

fn encode_product(Product { loss, factor, dtype }: Product) -> schema::LossProduct {
    schema::LossProduct { loss, factor, dtype: encode_dtype(dtype).into() }
}

fn decode_product(product: schema::LossProduct) -> Option<Product> {
    let schema::LossProduct { loss, factor, dtype: format } = product;
    Some(Product { loss, factor, dtype: dtype(format).ok()? })
}

fn encode_refusal(refusal: Refusal) -> schema::Refusal {
    match refusal {
        Refusal::UnscaledTwice => schema::Refusal::UnscaledTwice,
        Refusal::UnscaledAfterStep => schema::Refusal::UnscaledAfterStep,
        Refusal::SteppedTwice => schema::Refusal::SteppedTwice,
        Refusal::NoGradients => schema::Refusal::NoGradients,
        Refusal::NothingScaled => schema::Refusal::NothingScaled,
        Refusal::NothingChecked => schema::Refusal::NothingChecked,
        Refusal::HalfGradients => schema::Refusal::HalfGradients,
    }
}

fn decode_refusal(value: i32) -> Option<Refusal> {
    Some(match schema::Refusal::try_from(value).ok()? {
        schema::Refusal::UnscaledTwice => Refusal::UnscaledTwice,
        schema::Refusal::UnscaledAfterStep => Refusal::UnscaledAfterStep,
        schema::Refusal::SteppedTwice => Refusal::SteppedTwice,
        schema::Refusal::NoGradients => Refusal::NoGradients,
        schema::Refusal::NothingScaled => Refusal::NothingScaled,
        schema::Refusal::NothingChecked => Refusal::NothingChecked,
        schema::Refusal::HalfGradients => Refusal::HalfGradients,
        schema::Refusal::Unspecified => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Dtype;

    #[test]
    fn what_this_version_does_not_know_is_left_out() {
        let unknown = schema::CallRefused { optimizer: None, refusal: 99, parameters: Vec::new() };
        assert_eq!(decode(schema::RecipeEvent { after: 0, kind: Some(Kind::Refused(unknown)) }), None);
        assert_eq!(decode(schema::RecipeEvent { after: 0, kind: None }), None);
        let product = schema::LossProduct { loss: 1.0, factor: 2.0, dtype: 99 };
        let began = schema::BackwardBegan { holding: 1, used: 0, product: Some(product) };
        let backward = decode(schema::RecipeEvent { after: 0, kind: Some(Kind::Backward(began)) });
        assert_eq!(backward.map(|e| e.act), Some(Act::Backward { holding: 1, used: 0, product: None }));
    }

    #[test]
    fn a_loss_that_is_no_number_comes_back() {
        let product = Some(Product { loss: f64::INFINITY, factor: 65536.0, dtype: Dtype::F16 });
        let event = RecipeEvent { after: 3, act: Act::Backward { holding: 0, used: 0, product } };
        assert_eq!(decode(encode(&event)), Some(event));
    }
}
