//! The C border to LibTorch; the other side is `shim/observer.cpp`.

use std::ffi::{c_char, c_int, c_void};

use ampdoctor::scan::{Dtype, TensorView};

/// A tensor, as the shim describes it; mirrors `ampd_tensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawTensor {
    pub data: *const c_void,
    /// The TensorImpl.
    pub impl_: *const c_void,
    sizes: *const i64,
    strides: *const i64,
    rank: i32,
    dtype: i32,
    readable: u8,
    reducible: u8,
    pub tracked: u8,
    pub trainable: u8,
    pub version: u32,
    pub storage: usize,
    pub offset: usize,
}

impl RawTensor {
    pub(crate) fn empty() -> Self {
        Self {
            data: std::ptr::null(),
            impl_: std::ptr::null(),
            sizes: std::ptr::null(),
            strides: std::ptr::null(),
            rank: 0,
            dtype: 4,
            readable: 0,
            reducible: 0,
            tracked: 0,
            trainable: 0,
            version: 0,
            storage: 0,
            offset: 0,
        }
    }

    /// Whether its memory is read by its device alone: what is to be known of it is computed there.
    pub(crate) fn is_on_device(&self) -> bool {
        self.reducible != 0
    }

    /// How many elements it has.
    pub(crate) fn count(&self) -> u64 {
        self.sizes().iter().map(|&size| size.max(0) as u64).product()
    }

    /// Whether it holds integers.
    pub(crate) fn is_integral(&self) -> bool {
        matches!(self.dtype, 5 | 6)
    }

    /// The element type, where it is one that is scanned.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        match self.dtype {
            0 => Some(Dtype::F16),
            1 => Some(Dtype::Bf16),
            2 => Some(Dtype::F32),
            3 => Some(Dtype::F64),
            _ => None,
        }
    }

    pub(crate) fn sizes(&self) -> &[i64] {
        // SAFETY: the shim fills rank and pointers together, and they are valid while it is called.
        unsafe { slice(self.sizes, self.rank) }
    }

    pub(crate) fn strides(&self) -> &[i64] {
        // SAFETY: as for sizes.
        unsafe { slice(self.strides, self.rank) }
    }

    /// The elements of a dense tensor of integers.
    pub(crate) fn integers(&self) -> Option<Integers<'_>> {
        let (mut count, mut dense) = (1, true);
        for (&size, &stride) in self.sizes().iter().zip(self.strides()).rev() {
            dense &= size == 1 || stride == count;
            count *= size;
        }
        if self.readable == 0 || self.data.is_null() || !dense || count <= 0 {
            return None;
        }
        // SAFETY: the shim passes `count` elements of this type in a row, which live while it is called.
        unsafe {
            match self.dtype {
                5 => Some(Integers::I64(std::slice::from_raw_parts(self.data.cast(), count as usize))),
                6 => Some(Integers::I32(std::slice::from_raw_parts(self.data.cast(), count as usize))),
                _ => None,
            }
        }
    }

    /// The tensor's memory, where it can be read and has a dtype that is scanned.
    pub(crate) fn view(&self) -> Option<TensorView<'_>> {
        let dtype = self.dtype()?;
        let view = TensorView::new(self.data.cast(), dtype, self.sizes(), self.strides()).ok()?;
        (self.readable != 0).then_some(view)
    }

    /// The number in a floating-point tensor of one element; `None` for any other, and where its memory cannot be read.
    pub(crate) fn number(&self) -> Option<f64> {
        self.view().filter(|view| view.count() == 1).map(|view| {
            // SAFETY: the shim describes live memory, and is not called again while this runs.
            let of_it = unsafe { ampdoctor::scan::summary(&view) };
            match (of_it.nan, of_it.pos_inf, of_it.neg_inf) {
                (0, 0, 0) => of_it.sum.to_f64(),
                (0, 1, _) => f64::INFINITY,
                (0, _, 1) => f64::NEG_INFINITY,
                _ => f64::NAN,
            }
        })
    }

    /// Where its first element lies.
    pub(crate) fn place(&self) -> Place {
        Place { storage: self.storage, offset: self.offset }
    }

    /// Identity of the memory's content within one step.
    pub(crate) fn content(&self) -> Content {
        Content { storage: self.storage, version: self.version }
    }
}

/// The elements of a tensor of integers.
pub(crate) enum Integers<'a> {
    I64(&'a [i64]),
    I32(&'a [i32]),
}

unsafe fn slice<'a>(data: *const i64, rank: i32) -> &'a [i64] {
    if data.is_null() || rank <= 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, rank as usize) }
}

/// The memory of a tensor whose elements fill one run of it, in the order in which they lie; `None` for any other layout.
///
/// # Safety
/// The view is of a live tensor, which is not changed while the slice is used.
pub(crate) unsafe fn dense_memory<'a>(view: &TensorView<'a>) -> Option<&'a [u8]> {
    match view.dense_bytes()? {
        (_, 0) => Some(&[]),
        // SAFETY: the caller's promise; the elements are exactly these bytes.
        (data, bytes) => Some(unsafe { std::slice::from_raw_parts(data, bytes) }),
    }
}

/// Where a tensor's first element lies: tensors may share a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub storage: usize,
    /// In bytes.
    pub offset: usize,
}

/// A storage at one version of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    pub storage: usize,
    pub version: u32,
}

/// An operator; mirrors `ampd_op`.
#[repr(C)]
pub(crate) struct RawOp {
    pub name: *const c_char,
    pub kind: i32,
    pub grad_mode: u8,
    pub sequence: i64,
    tensors: *const RawTensor,
    count: usize,
    scalars: *const f64,
    scalar_count: usize,
}

impl RawOp {
    pub(crate) const BACKWARD_NODE: i32 = 1;

    /// An operator without arguments.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            name: std::ptr::null(),
            kind: 0,
            grad_mode: 0,
            sequence: 0,
            tensors: std::ptr::null(),
            count: 0,
            scalars: std::ptr::null(),
            scalar_count: 0,
        }
    }

    pub(crate) fn tensors(&self) -> &[RawTensor] {
        if self.tensors.is_null() || self.count == 0 {
            return &[];
        }
        // SAFETY: the shim passes an array of `count` tensors that lives for the call.
        unsafe { std::slice::from_raw_parts(self.tensors, self.count) }
    }

    /// The first numbers among the arguments, in order.
    pub(crate) fn scalars(&self) -> &[f64] {
        if self.scalars.is_null() || self.scalar_count == 0 {
            return &[];
        }
        // SAFETY: the shim passes an array of `scalar_count` numbers that lives for the call.
        unsafe { std::slice::from_raw_parts(self.scalars, self.scalar_count) }
    }

    /// The name as LibTorch has it: `aten::linear`.
    pub(crate) fn name(&self) -> &str {
        if self.name.is_null() {
            return "";
        }
        // SAFETY: the shim passes a C string that lives for the call.
        unsafe { std::ffi::CStr::from_ptr(self.name) }.to_str().unwrap_or("")
    }
}

/// The shim's observer of one thread; mirrors `ampd_observer`.
#[repr(C)]
pub(crate) struct RawObserver {
    _private: [u8; 0],
}

unsafe extern "C" {
    pub(crate) fn ampd_observer_install(attachment: *mut c_void) -> *mut RawObserver;
    pub(crate) fn ampd_thread_is_observed() -> c_int;
    pub(crate) fn ampd_observer_is_here(observer: *const RawObserver) -> c_int;
    pub(crate) fn ampd_observer_enable(observer: *mut RawObserver, enabled: c_int) -> c_int;
    pub(crate) fn ampd_observer_step(observer: *mut RawObserver);
    pub(crate) fn ampd_observer_take_ns(observer: *mut RawObserver) -> u64;
    pub(crate) fn ampd_observer_remove(observer: *mut RawObserver);
    pub(crate) fn ampd_describe_on_host(tensor: *const c_void, out: *mut RawTensor) -> c_int;
    pub(crate) fn ampd_describe(tensor: *const c_void, out: *mut RawTensor) -> c_int;
    pub(crate) fn ampd_describe_gradient(tensor: *const c_void, out: *mut RawTensor) -> c_int;
    pub(crate) fn ampd_gradient_content(tensor: *const c_void, storage: *mut usize, version: *mut u32) -> c_int;
    pub(crate) fn ampd_storage(tensor: *const c_void) -> usize;
    pub(crate) fn ampd_offset(tensor: *const c_void) -> usize;
    pub(crate) fn ampd_identity(tensor: *const c_void) -> usize;
    pub(crate) fn ampd_version(tensor: *const c_void) -> u32;
    pub(crate) fn ampd_release_copies();
    pub(crate) fn ampd_framework_version() -> *const c_char;
    pub(crate) fn ampd_plant_exception(callback: c_int);
}

/// Safe forms of what the shim says about a tensor of tch.
pub(crate) mod tensor {
    use super::{
        Content, Place, RawTensor, ampd_describe, ampd_describe_gradient, ampd_describe_on_host, ampd_gradient_content,
        ampd_identity, ampd_offset, ampd_storage, ampd_version,
    };
    use tch::Tensor;

    /// The tensor itself. The answer borrows the tensor's sizes and must be used before the tensor changes.
    pub(crate) fn describe(tensor: &Tensor) -> Option<RawTensor> {
        let mut out = RawTensor::empty();
        // SAFETY: a tch tensor holds a valid at::Tensor.
        (unsafe { ampd_describe(tensor.as_ptr().cast(), &mut out) } != 0).then_some(out)
    }

    /// The tensor, or a copy of it in host memory where its own cannot be read: that waits for its device. The copy lives until `ampd_release_copies`.
    pub(crate) fn on_host(tensor: &Tensor) -> Option<RawTensor> {
        let mut out = RawTensor::empty();
        // SAFETY: as above.
        (unsafe { ampd_describe_on_host(tensor.as_ptr().cast(), &mut out) } != 0).then_some(out)
    }

    /// Its gradient, where there is one.
    pub(crate) fn gradient(tensor: &Tensor) -> Option<RawTensor> {
        let mut out = RawTensor::empty();
        // SAFETY: as above.
        (unsafe { ampd_describe_gradient(tensor.as_ptr().cast(), &mut out) } != 0).then_some(out)
    }

    /// Which memory its gradient is, where there is one. Cheaper than [`gradient`].
    pub(crate) fn gradient_content(tensor: &Tensor) -> Option<Content> {
        let mut content = Content { storage: 0, version: 0 };
        // SAFETY: as above; both places are written where the answer is not 0.
        let defined =
            unsafe { ampd_gradient_content(tensor.as_ptr().cast(), &mut content.storage, &mut content.version) };
        (defined != 0).then_some(content)
    }

    /// Lets go of the host's copies of what was described.
    pub(crate) fn release_copies() {
        // SAFETY: frees what no description is used of any more.
        unsafe { super::ampd_release_copies() };
    }

    /// The address of its storage; 0 where there is none.
    pub(crate) fn storage(tensor: &Tensor) -> usize {
        // SAFETY: as above.
        unsafe { ampd_storage(tensor.as_ptr().cast()) }
    }

    /// Where its first element lies.
    pub(crate) fn place(tensor: &Tensor) -> Place {
        // SAFETY: as above.
        Place { storage: storage(tensor), offset: unsafe { ampd_offset(tensor.as_ptr().cast()) } }
    }

    /// The address of its TensorImpl: equal for all handles of one tensor.
    pub(crate) fn identity(tensor: &Tensor) -> usize {
        // SAFETY: as above.
        unsafe { ampd_identity(tensor.as_ptr().cast()) }
    }

    /// Autograd's version counter.
    pub(crate) fn version(tensor: &Tensor) -> u32 {
        // SAFETY: as above.
        unsafe { ampd_version(tensor.as_ptr().cast()) }
    }
}
