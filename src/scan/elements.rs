//! The elements of one tensor in the order in which another's lie in memory.

use half::slice::HalfFloatSliceExt;
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
        // SAFETY: the caller's promise; the dimensions reach the elements of `view` and no others.
        unsafe { walk(view.dtype, view.data, &dimensions, out) };
    }
    true
}

/// Length, and stride in `view`, of each dimension of `like` that has more than one element, the outermost in memory first; those that
/// continue each other are one.
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
    let mut joined: Vec<(i64, i64)> = Vec::with_capacity(dimensions.len());
    for (_, size, stride) in dimensions {
        match joined.last_mut() {
            Some((outer, outer_stride)) if *outer_stride == stride * size => {
                (*outer, *outer_stride) = (*outer * size, stride)
            }
            _ => joined.push((size, stride)),
        }
    }
    Some(joined)
}

/// # Safety
/// The elements that the dimensions reach from `data` are readable.
unsafe fn walk(dtype: Dtype, data: *const u8, dimensions: &[(i64, i64)], out: &mut Vec<f32>) {
    let step = |stride: i64| stride as isize * dtype.size() as isize;
    match dimensions {
        // SAFETY: the caller's promise.
        [] => unsafe { run(dtype, data, 1, out) },
        // SAFETY: as above; a stride of 1 makes it one run of memory.
        [(size, 1)] => unsafe { run(dtype, data, *size as usize, out) },
        [(size, 0)] => {
            // SAFETY: as above.
            unsafe { run(dtype, data, 1, out) };
            let last = out.last().copied().unwrap_or_default();
            out.extend(std::iter::repeat_n(last, *size as usize - 1));
        }
        [(size, stride), inner @ ..] => {
            for i in 0..*size as isize {
                // SAFETY: as above.
                unsafe { walk(dtype, data.wrapping_offset(i * step(*stride)), inner, out) };
            }
        }
    }
}

/// Appends `elements` elements that lie one behind the other, aligned or not.
///
/// # Safety
/// They are readable.
unsafe fn run(dtype: Dtype, data: *const u8, elements: usize, out: &mut Vec<f32>) {
    // SAFETY: the caller's promise; bytes need no alignment and have no invalid patterns.
    let mut bytes = unsafe { std::slice::from_raw_parts(data, elements * dtype.size()) };
    let mut block = [0.0; BLOCK];
    while !bytes.is_empty() {
        let (now, later) = bytes.split_at(bytes.len().min(BLOCK * dtype.size()));
        let n = widen(dtype, now, &mut block);
        out.extend_from_slice(&block[..n]);
        bytes = later;
    }
}

/// Elements that are converted at a time.
pub(super) const BLOCK: usize = 1024;

/// At most [`BLOCK`] elements as `f32`; how many there are.
pub(super) fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32; BLOCK]) -> usize {
    match dtype {
        Dtype::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let n = copy(bytes, &mut halves, f16::from_ne_bytes);
            halves[..n].convert_to_f32_slice(&mut out[..n]);
            n
        }
        Dtype::Bf16 => {
            let mut halves = [bf16::ZERO; BLOCK];
            let n = copy(bytes, &mut halves, bf16::from_ne_bytes);
            halves[..n].convert_to_f32_slice(&mut out[..n]);
            n
        }
        Dtype::F32 => copy(bytes, out, f32::from_ne_bytes),
        Dtype::F64 => copy(bytes, out, |bytes| f64::from_ne_bytes(bytes) as f32),
    }
}

/// The elements of `bytes`, read one by one; how many there are.
fn copy<T, const N: usize>(bytes: &[u8], out: &mut [T; BLOCK], read: impl Fn([u8; N]) -> T) -> usize {
    let (elements, _) = bytes.as_chunks::<N>();
    for (out, &bytes) in out.iter_mut().zip(elements) {
        *out = read(bytes);
    }
    elements.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(data: &'a [f32], sizes: &'a [i64], strides: &'a [i64]) -> TensorView<'a> {
        TensorView { data: data.as_ptr().cast(), dtype: Dtype::F32, sizes, strides }
    }

    /// Sizes and strides.
    type Shape<'a> = (&'a [i64], &'a [i64]);

    fn like(data: &[f32], shape: Shape<'_>, like: Shape<'_>) -> Option<Vec<f32>> {
        let mut out = vec![9.0];
        let target = [0.0; 6];
        // SAFETY: the tests' shapes stay within their data.
        unsafe { elements_like(&view(data, shape.0, shape.1), &view(&target, like.0, like.1), &mut out) }.then_some(out)
    }

    const SIX: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

    #[test]
    fn the_order_is_that_of_the_other_tensors_memory() {
        let (rows, columns): (Shape<'_>, Shape<'_>) = ((&[2, 3], &[3, 1]), (&[2, 3], &[1, 2]));
        assert_eq!(like(&SIX, rows, rows).unwrap(), SIX);
        assert_eq!(like(&SIX, columns, columns).unwrap(), SIX);
        assert_eq!(like(&SIX, rows, columns).unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(like(&SIX, columns, rows).unwrap(), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }

    #[test]
    fn what_is_smaller_is_expanded_as_operators_do() {
        let rows: Shape<'_> = (&[2, 3], &[3, 1]);
        assert_eq!(like(&[7.0], (&[], &[]), rows).unwrap(), [7.0; 6]);
        assert_eq!(like(&[1.0, 2.0, 3.0], (&[3], &[1]), rows).unwrap(), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        assert_eq!(like(&[1.0, 2.0], (&[2, 1], &[1, 1]), rows).unwrap(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(like(&[], (&[0], &[1]), (&[0], &[1])), Some(vec![]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let rows: Shape<'_> = (&[2, 3], &[3, 1]);
        assert_eq!(like(&SIX, (&[2], &[1]), rows), None);
        assert_eq!(like(&SIX, (&[1, 2, 3], &[6, 3, 1]), rows), None);
        assert_eq!(like(&SIX, (&[2], &[1]), (&[2], &[3])), None, "not one run of memory");
    }
}
