// What the FP32 shadow needs of ATen: a closure of the user's runs on stand-ins for the model's tensors, and the run's own are never touched.
//
// Functions that return int return 0, or 1 with a message in ampdoctor_last_error(). Tensors are at::Tensor*.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// From here on, on this thread, every operator that is given `originals[i]` gets `stand_ins[i]` in its place. A stand-in that is not `writable[i]`
// may not be changed in place, nor may any original: an operator that tries throws. With `widen`, FP16 and BF16 tensors and dtypes among the
// arguments become FP32. An error where this thread is in a shadow already.
int ampdoctor_shadow_enter(const void* const* originals, const void* const* stand_ins, const uint8_t* writable, size_t count,
                           int32_t widen) noexcept;

// Ends it; how many times an operator was given a stand-in.
uint64_t ampdoctor_shadow_leave(void) noexcept;

// The gradients of `loss` times `scale`, taken in FP32, with respect to `inputs`, written to `gradients`; undefined where the loss does not depend on
// one. No .grad is written, and no graph but that of `loss` above the inputs is walked or freed.
int ampdoctor_gradients(const void* loss, double scale, const void* const* inputs, size_t count, void* const* gradients) noexcept;

// The state of the random numbers of a device (-1 the CPU, else the number of a CUDA device), written to `state`.
int ampdoctor_random_state(int32_t device, void* state) noexcept;

// Sets it.
int ampdoctor_set_random_state(int32_t device, const void* state) noexcept;
}
