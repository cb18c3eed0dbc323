// Tensors as plain C structs.
#include "describe.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstring>
#include <vector>

namespace {

thread_local std::vector<at::Tensor> copies;

int32_t dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kHalf: return AMPD_F16;
    case at::kBFloat16: return AMPD_BF16;
    case at::kFloat: return AMPD_F32;
    case at::kDouble: return AMPD_F64;
    case at::kLong: return AMPD_I64;
    case at::kInt: return AMPD_I32;
    default: return AMPD_OTHER;
  }
}

// A copy in host memory, made without a trace in autograd and without calling back.
const at::Tensor& host_copy(const at::Tensor& t) {
  at::DisableRecordFunctionGuard silent;
  at::NoGradGuard no_grad;
  copies.push_back(t.detach().to(at::kCPU));
  return copies.back();
}

bool is_coordinates(const at::Tensor& t) { return t.layout() == at::kSparse; }

// The values of a sparse tensor, without calling an operator.
at::Tensor stored_values(const at::Tensor& t) { return static_cast<const at::SparseTensorImpl*>(t.unsafeGetTensorImpl())->values(); }

// A sparse tensor that has each place once, kept for this call.
at::Tensor coalesced(const at::Tensor& t) {
  at::DisableRecordFunctionGuard silent;
  at::NoGradGuard no_grad;
  copies.push_back(t.detach().coalesce());
  return copies.back();
}

std::atomic<bool> host_as_device{false};

void describe_memory(const at::Tensor& t, bool on_host, ampd_tensor* out) {
  out->sizes = t.sizes().data();
  out->strides = t.strides().data();
  out->rank = static_cast<int32_t>(t.dim());
  out->readable = on_host;
  out->reducible = !on_host && out->dtype != AMPD_OTHER;
  if (on_host) out->data = t.const_data_ptr();
}

}  // namespace

namespace ampdoctor {

c10::StorageImpl* storage_of(const at::Tensor& t) {
  if (is_coordinates(t)) return storage_of(stored_values(t));
  return t.unsafeGetTensorImpl()->has_storage() ? t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

bool is_tracked(const at::Tensor& t) {
  if (!t.requires_grad()) return false;
  try {
    return t.grad_fn() != nullptr;
  } catch (const c10::Error&) {
    // A view made without autograd, of something that autograd follows, refuses to say so once it was changed in place.
    return false;
  }
}

namespace {

size_t offset_of(const at::Tensor& t) { return static_cast<size_t>(t.storage_offset()) * t.element_size(); }

uint32_t version_of(const at::Tensor& t) { return t.is_inference() ? 0 : static_cast<uint32_t>(t._version()); }

// The memory of the values of a sparse tensor, and what autograd knows of the tensor itself.
bool describe_values(const at::Tensor& t, ampd_tensor* out) {
  const uint8_t trainable = out->trainable, tracked = out->tracked;
  // Sizes are borrowed from it.
  copies.push_back(stored_values(t));
  const at::Tensor values = copies.back();
  if (!describe(values, out)) return false;
  out->trainable = trainable;
  out->tracked = tracked;
  out->version = version_of(t);
  return true;
}

}  // namespace

bool describe_gradient(const at::Tensor& gradient, ampd_tensor* out) {
  if (!gradient.defined() || !is_coordinates(gradient)) return describe(gradient, out);
  if (!describe(coalesced(gradient), out)) return false;
  out->storage = reinterpret_cast<uintptr_t>(storage_of(gradient));
  out->version = version_of(gradient);
  return true;
}

bool describe(const at::Tensor& t, ampd_tensor* out) {
  std::memset(out, 0, sizeof(*out));
  out->dtype = AMPD_OTHER;
  if (!t.defined()) return false;
  out->dtype = dtype_of(t);
  out->trainable = t.requires_grad();
  out->tracked = is_tracked(t);
  if (is_coordinates(t)) return describe_values(t, out);
  const auto* impl = t.unsafeGetTensorImpl();
  out->impl = impl;
  if (t.layout() != at::kStrided || t.is_nested() || !impl->has_storage() || impl->has_symbolic_sizes_strides()) return true;
  out->storage = reinterpret_cast<uintptr_t>(storage_of(t));
  out->offset = offset_of(t);
  out->version = version_of(t);
  if (!t.is_meta()) describe_memory(t, t.is_cpu() && !host_as_device.load(std::memory_order_relaxed), out);
  return true;
}

void treat_host_as_device(bool on) { host_as_device = on; }

void release_copies() { copies.clear(); }

}  // namespace ampdoctor

extern "C" {

int ampd_describe_on_host(const void* tensor, ampd_tensor* out) {
  try {
    const at::Tensor& t = *static_cast<const at::Tensor*>(tensor);
    if (!ampdoctor::describe(t, out)) return 0;
    if (out->readable || !out->reducible) return 1;
    describe_memory(t.is_cpu() ? t : host_copy(t), true, out);
    return 1;
  } catch (...) {
    return 0;
  }
}

int ampd_describe(const void* tensor, ampd_tensor* out) {
  try {
    return ampdoctor::describe(*static_cast<const at::Tensor*>(tensor), out);
  } catch (...) {
    return 0;
  }
}

int ampd_describe_gradient(const void* tensor, ampd_tensor* out) {
  try {
    const at::Tensor& gradient = static_cast<const at::Tensor*>(tensor)->grad();
    return ampdoctor::describe_gradient(gradient, out);
  } catch (...) {
    return 0;
  }
}

int ampd_gradient_content(const void* tensor, uintptr_t* storage, uint32_t* version) {
  try {
    const at::Tensor& gradient = static_cast<const at::Tensor*>(tensor)->grad();
    if (!gradient.defined()) return 0;
    *storage = ampd_storage(&gradient);
    *version = ampd_version(&gradient);
    return 1;
  } catch (...) {
    return 0;
  }
}

uintptr_t ampd_storage(const void* tensor) {
  const auto* t = static_cast<const at::Tensor*>(tensor);
  return t->defined() ? reinterpret_cast<uintptr_t>(ampdoctor::storage_of(*t)) : 0;
}

size_t ampd_offset(const void* tensor) {
  const auto* t = static_cast<const at::Tensor*>(tensor);
  const bool dense = t->defined() && t->layout() == at::kStrided && t->unsafeGetTensorImpl()->has_storage();
  return dense ? ampdoctor::offset_of(*t) : 0;
}

uintptr_t ampd_identity(const void* tensor) {
  return reinterpret_cast<uintptr_t>(static_cast<const at::Tensor*>(tensor)->unsafeGetTensorImpl());
}

uint32_t ampd_version(const void* tensor) {
  const auto* t = static_cast<const at::Tensor*>(tensor);
  return !t->defined() || t->is_inference() ? 0 : static_cast<uint32_t>(t->_version());
}

void ampd_release_copies(void) { ampdoctor::release_copies(); }
}
