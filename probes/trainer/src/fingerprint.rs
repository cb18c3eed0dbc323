//! One number for all that a run leaves behind: two runs with the same fingerprint did the same thing, bit for bit.

use anyhow::Result;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor, nn};

/// How many random numbers are drawn: an observer that used the generator would shift them.
const RANDOM_NUMBERS: i64 = 16;

/// SHA-256 over every parameter and buffer of the stores, by name, and over random numbers drawn now; in hexadecimal.
///
/// Advances LibTorch's generator.
pub fn fingerprint(stores: &[&nn::VarStore]) -> Result<String> {
    of(stores, &Tensor::randn([RANDOM_NUMBERS], (Kind::Float, Device::Cpu)))
}

fn of(stores: &[&nn::VarStore], drawn: &Tensor) -> Result<String> {
    let mut hash = Sha256::new();
    for vs in stores {
        let mut variables: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
        variables.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, tensor) in &variables {
            add(&mut hash, name, tensor)?;
        }
    }
    add(&mut hash, "randn", drawn)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Name, dtype and shape go in too, so that the same bytes under another name are another fingerprint.
fn add(hash: &mut Sha256, name: &str, tensor: &Tensor) -> Result<()> {
    hash.update(format!("{name}|{:?}|{:?}|", tensor.kind(), tensor.size()));
    hash.update(bytes(tensor)?);
    Ok(())
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let flat = tensor.detach().contiguous();
    let mut bytes = vec![0; flat.numel() * flat.kind().elt_size_in_bytes()];
    flat.f_copy_data_u8(&mut bytes, flat.numel())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(value: f32, name: &str) -> nn::VarStore {
        let vs = nn::VarStore::new(Device::Cpu);
        let _ = vs.root().var(name, &[3], nn::Init::Const(f64::from(value)));
        vs
    }

    #[test]
    fn one_bit_a_name_or_one_random_number_changes_it() {
        // Not drawn: the generator is one for the whole process, and other tests draw from it meanwhile.
        let (drawn, other) = (Tensor::from_slice(&[0.5f32, -1.0]), Tensor::from_slice(&[0.5f32, -1.5]));
        let first = of(&[&store(1.0, "w")], &drawn).unwrap();
        assert_eq!(first.len(), 64);
        assert_eq!(first, of(&[&store(1.0, "w")], &drawn).unwrap());
        assert_ne!(first, of(&[&store(1.0 + f32::EPSILON, "w")], &drawn).unwrap(), "one bit");
        assert_ne!(first, of(&[&store(1.0, "v")], &drawn).unwrap(), "a name");
        assert_ne!(first, of(&[&store(1.0, "w")], &other).unwrap(), "the random state");
        let with_copies = |value| of(&[&store(1.0, "w"), &store(value, "w")], &drawn).unwrap();
        assert_ne!(with_copies(1.0), with_copies(1.5), "the second store");
    }

    #[test]
    fn what_is_drawn_is_part_of_it() {
        let vs = store(1.0, "w");
        assert_ne!(fingerprint(&[&vs]).unwrap(), fingerprint(&[&vs]).unwrap());
    }
}
