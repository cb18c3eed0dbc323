// What GradScaler, MasterWeights and autocast need of ATen and tch does not have.
// Functions that return int return 0, or 1 with a message in ampdoctor_last_error().
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Which autocast state: 0 the CPU's, 1 CUDA's.
typedef int32_t ampdoctor_autocast_device;

// The low-precision dtype, as c10::ScalarType numbers it: 5 Half, 15 BFloat16.
typedef int32_t ampdoctor_dtype;

// The autocast state of this thread for one kind of device.
struct ampdoctor_autocast_state {
  int32_t enabled;
  ampdoctor_dtype dtype;
};

// Address of the TensorImpl behind a tch tensor: its identity, however often the handle is cloned. Null for an undefined tensor.
const void* ampdoctor_tensor_identity(const void* tensor) noexcept;

// Makes `gradient` the .grad of `tensor`; null takes the .grad away. Both are at::Tensor*.
int ampdoctor_set_gradient(void* tensor, const void* gradient) noexcept;

// Multiplies `count` gradients by `inv_scale` in place and sets `found_inf` to 1 if one of them held a NaN or an infinity before.
// All of one device and dtype; tensors are at::Tensor*.
int ampdoctor_unscale(void* const* gradients, size_t count, void* found_inf, const void* inv_scale) noexcept;

// Reads the autocast state of this thread into `state`.
int ampdoctor_autocast_get(ampdoctor_autocast_device device, ampdoctor_autocast_state* state) noexcept;

// Sets the autocast state of this thread.
int ampdoctor_autocast_set(ampdoctor_autocast_device device, ampdoctor_autocast_state state) noexcept;

// Enters one level of autocast on this thread; `clear_cache` drops the cast weights of the level outside, for another dtype.
int ampdoctor_autocast_enter(int clear_cache) noexcept;

// Leaves one level; leaving the outermost drops the cast weights whatever `clear_cache` says.
int ampdoctor_autocast_leave(int clear_cache) noexcept;
}
