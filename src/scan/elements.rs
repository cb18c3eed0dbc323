//! The elements of one tensor in the order in which another's lie in memory.

use half::{bf16, f16};

use super::{Dtype, TensorView};

/// Writes the elements of `view` to `out`, as `f32`, expanded to the shape of `like` and in the order in which its elements lie in memory
/// ([`TensorView::dense_bytes`]): the operand of an in-place operator on `like`, element by element.
///
/// False, and nothing is written, where `view` does not expand to that shape, or `like` does not fill one run of memory forwards.
///
/// # Safety
/// Every element that `view` reaches from its data pointer must be readable for the length of the call.
pub unsafe fn elements_like(view: &TensorView<'_>, like: &TensorView<'_>, out: &mut Vec<f32>) -> bool {
    if view.check().is_err() || like.dense_bytes().is_none() || like.strides.iter().any(|&s| s < 0) {
        return false;
    }
    let Some(dimensions) = dimensions(view, like) else { return false };
    out.clear();
    out.reserve(like.count() as usize);
    if like.count() > 0 {
        let read = |offset: isize| {
            // SAFETY: the caller's promise; the offsets are those of elements of `view`.
            unsafe { element(view.dtype, view.data.wrapping_offset(offset * view.dtype.size() as isize)) }
        };
        walk(&dimensions, 0, &read, out);
    }
    true
}

/// Length, and stride in `view`, of each dimension of `like` that has more than one element, the outermost in memory first.
fn dimensions(view: &TensorView<'_>, like: &TensorView<'_>) -> Option<Vec<(i64, i64)>> {
    let missing = like.sizes.len().checked_sub(view.sizes.len())?;
    let mut dimensions = Vec::with_capacity(like.sizes.len());
    for (at, (&size, &place)) in like.sizes.iter().zip(like.strides).enumerate() {
        let stride = match at.checked_sub(missing) {
            None => 0,
            Some(i) if view.sizes[i] == size => view.strides[i],
            Some(i) if view.sizes[i] == 1 => 0,
            Some(_) => return None,
        };
        if size != 1 {
            dimensions.push((place, size, stride));
        }
    }
    dimensions.sort_by_key(|&(place, ..)| std::cmp::Reverse(place));
    Some(dimensions.into_iter().map(|(_, size, stride)| (size, stride)).collect())
}

fn walk(dimensions: &[(i64, i64)], offset: isize, read: &impl Fn(isize) -> f32, out: &mut Vec<f32>) {
    match dimensions {
        [] => out.push(read(offset)),
        [(size, stride)] => out.extend((0..*size as isize).map(|i| read(offset + i * *stride as isize))),
        [(size, stride), inner @ ..] => {
            for i in 0..*size as isize {
                walk(inner, offset + i * *stride as isize, read, out);
            }
        }
    }
}

/// # Safety
/// An element of `dtype` is readable at `at`, aligned or not.
unsafe fn element(dtype: Dtype, at: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Dtype::F16 => at.cast::<f16>().read_unaligned().to_f32(),
            Dtype::Bf16 => at.cast::<bf16>().read_unaligned().to_f32(),
            Dtype::F32 => at.cast::<f32>().read_unaligned(),
            Dtype::F64 => at.cast::<f64>().read_unaligned() as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(data: &'a [f32], sizes: &'a [i64], strides: &'a [i64]) -> TensorView<'a> {
        TensorView { data: data.as_ptr().cast(), dtype: Dtype::F32, sizes, strides }
    }

    fn like(data: &[f32], shape: (&[i64], &[i64]), like: (&[i64], &[i64])) -> Option<Vec<f32>> {
        let mut out = vec![9.0];
        let target = [0.0; 6];
        // SAFETY: the tests' shapes stay within their data.
        unsafe { elements_like(&view(data, shape.0, shape.1), &view(&target, like.0, like.1), &mut out) }.then_some(out)
    }

    const SIX: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

    #[test]
    fn the_order_is_that_of_the_other_tensors_memory() {
        let (rows, columns): ((&[i64], &[i64]), (&[i64], &[i64])) = ((&[2, 3], &[3, 1]), (&[2, 3], &[1, 2]));
        assert_eq!(like(&SIX, rows, rows).unwrap(), SIX);
        assert_eq!(like(&SIX, columns, columns).unwrap(), SIX);
        assert_eq!(like(&SIX, rows, columns).unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(like(&SIX, columns, rows).unwrap(), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }

    #[test]
    fn what_is_smaller_is_expanded_as_operators_do() {
        let rows: (&[i64], &[i64]) = (&[2, 3], &[3, 1]);
        assert_eq!(like(&[7.0], (&[], &[]), rows).unwrap(), [7.0; 6]);
        assert_eq!(like(&[1.0, 2.0, 3.0], (&[3], &[1]), rows).unwrap(), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        assert_eq!(like(&[1.0, 2.0], (&[2, 1], &[1, 1]), rows).unwrap(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(like(&[], (&[0], &[1]), (&[0], &[1])), Some(vec![]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let rows: (&[i64], &[i64]) = (&[2, 3], &[3, 1]);
        assert_eq!(like(&SIX, (&[2], &[1]), rows), None);
        assert_eq!(like(&SIX, (&[1, 2, 3], &[6, 3, 1]), rows), None);
        assert_eq!(like(&SIX, (&[2], &[1]), (&[2], &[3])), None, "not one run of memory");
    }
}
