#include "amp.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include <vector>

#include "guard.h"

using ampdoctor::guarded;

namespace {

const at::Tensor& as_tensor(const void* tensor) {
  return *static_cast<const at::Tensor*>(tensor);
}

at::DeviceType device_type(ampdoctor_autocast_device device) {
  return device == 1 ? at::kCUDA : at::kCPU;
}

}  // namespace

extern "C" {

const void* ampdoctor_tensor_identity(const void* tensor) noexcept {
  const at::Tensor& value = as_tensor(tensor);
  return value.defined() ? value.unsafeGetTensorImpl() : nullptr;
}

int ampdoctor_set_gradient(void* tensor, const void* gradient) noexcept {
  return guarded([&] {
    static_cast<at::Tensor*>(tensor)->mutable_grad() = gradient == nullptr ? at::Tensor() : as_tensor(gradient);
  });
}

int ampdoctor_unscale(void* const* gradients, size_t count, void* found_inf, const void* inv_scale) noexcept {
  return guarded([&] {
    std::vector<at::Tensor> list;
    list.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      list.push_back(as_tensor(gradients[i]));
    }
    at::_amp_foreach_non_finite_check_and_unscale_(list, *static_cast<at::Tensor*>(found_inf), as_tensor(inv_scale));
  });
}

int ampdoctor_autocast_get(ampdoctor_autocast_device device, ampdoctor_autocast_state* state) noexcept {
  return guarded([&] {
    const auto type = device_type(device);
    state->enabled = at::autocast::is_autocast_enabled(type) ? 1 : 0;
    state->dtype = static_cast<ampdoctor_dtype>(at::autocast::get_autocast_dtype(type));
  });
}

int ampdoctor_autocast_set(ampdoctor_autocast_device device, ampdoctor_autocast_state state) noexcept {
  return guarded([&] {
    const auto type = device_type(device);
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(state.dtype));
    at::autocast::set_autocast_enabled(type, state.enabled != 0);
  });
}

int ampdoctor_autocast_enter(int clear_cache) noexcept {
  return guarded([&] {
    if (clear_cache != 0) {
      at::autocast::clear_cache();
    }
    at::autocast::increment_nesting();
  });
}

int ampdoctor_autocast_leave(int clear_cache) noexcept {
  return guarded([&] {
    if (at::autocast::decrement_nesting() == 0 || clear_cache != 0) {
      at::autocast::clear_cache();
    }
  });
}
}
