//! What error messages call a parameter.

use std::borrow::Borrow;
use std::sync::{Arc, Mutex, PoisonError};

use tch::Tensor;
use tch::nn::Variables;

use super::optimizer::identity;

/// Parameters that a message lists before it says how many more there are.
const LISTED: usize = 4;

/// `2 parameters: fc.weight [3, 4], fc.bias [3]`; without the names where no store knows them.
pub(super) fn list<T: Borrow<Tensor>>(stores: &[Arc<Mutex<Variables>>], parameters: &[T]) -> String {
    let labels: Vec<String> =
        parameters.iter().take(LISTED).map(|parameter| label(stores, parameter.borrow())).collect();
    let more = match parameters.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match parameters.len() {
        0 => "it has no parameters".to_owned(),
        1 => format!("1 parameter: {}", labels.join(", ")),
        count => format!("{count} parameters: {}{more}", labels.join(", ")),
    }
}

fn label(stores: &[Arc<Mutex<Variables>>], parameter: &Tensor) -> String {
    let shape = parameter.size();
    match stores.iter().find_map(|store| name_in(store, parameter)) {
        Some(name) => format!("{name} {shape:?}"),
        None => format!("shape {shape:?}"),
    }
}

fn name_in(store: &Mutex<Variables>, parameter: &Tensor) -> Option<String> {
    let wanted = identity(parameter);
    // A panic elsewhere does not change what the parameters are called.
    let variables = store.lock().unwrap_or_else(PoisonError::into_inner);
    variables.named_variables.iter().find(|(_, tensor)| identity(tensor) == wanted).map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use tch::{Device, nn};

    use super::*;

    #[test]
    fn a_parameter_is_called_by_its_name_where_it_is_known_and_by_its_shape_elsewhere() {
        let vs = nn::VarStore::new(Device::Cpu);
        let weight = vs.root().sub("fc").zeros("weight", &[3, 4]);
        let stranger = Tensor::zeros([2], tch::kind::FLOAT_CPU);
        let stores = [vs.variables_.clone()];
        assert_eq!(list(&stores, &[&weight, &stranger]), "2 parameters: fc.weight [3, 4], shape [2]");
        assert_eq!(list(&[], &[&weight]), "1 parameter: shape [3, 4]");
        assert_eq!(list::<Tensor>(&stores, &[]), "it has no parameters");
        let many: Vec<&Tensor> = vec![&stranger; 6];
        assert!(list(&[], &many).ends_with("shape [2], shape [2] and 2 more"));
    }
}
