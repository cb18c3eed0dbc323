// Numbers that are computed on a tensor's device and fetched once, at the end of a step.
//
// Nothing here waits for a device, except ampd_reductions_fetch. What is enqueued is enqueued on the current stream: the numbers
// are those of the moment of the call, whatever is done to the tensor later.
//
// A tensor is given as its TensorImpl (ampd_tensor::impl). What computes numbers returns a ticket, or -1 with a message in
// ampdoctor_last_error().
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// The numbers of one step. Not for use by two threads at once.
struct ampd_reductions;

ampd_reductions* ampd_reductions_new(void);
void ampd_reductions_delete(ampd_reductions* reductions);

// Rows of AMPD_STATISTICS numbers, then the counts of the exponents from `first` on, then those of NaN, +inf and -inf; one row for
// each AMPD_CHUNK elements or part of them.
enum { AMPD_MIN_ABS = 0, AMPD_MAX_ABS = 1, AMPD_SUM = 2, AMPD_NORM = 3, AMPD_STATISTICS = 4, AMPD_CHUNK = 1 << 22 };
// What the numbers of a ticket are of. Where the format is f64, the sum and the norm are those of the elements times
// 2^(1023 - the exponent field of the largest), that field held within 23 and 2023.
struct ampd_statistics_form {
  int32_t first;          // the lowest exponent that is counted
  int32_t exponents;      // how many are
  uint8_t scaled;         // whether sum and norm are scaled
  uint64_t elements;      // those that are in the numbers
  uint64_t multiplicity;  // how often each of them stands in the tensor
};
int64_t ampd_reduce_statistics(ampd_reductions* reductions, const void* tensor, ampd_statistics_form* form);
// Of `now` - `before`, rounded to f32, or to f64 where they are that.
int64_t ampd_reduce_difference(ampd_reductions* reductions, const void* now, const void* before, ampd_statistics_form* form);
// The value of a tensor of one element.
int64_t ampd_reduce_number(ampd_reductions* reductions, const void* tensor);
// Three numbers of a tensor of integers, or of f32: elements that are not the same in f16, those that are not in bf16, and elements that are no integers.
int64_t ampd_reduce_integers(ampd_reductions* reductions, const void* tensor);
// Three numbers of a tensor in 16 bits: elements that are no integers, and pairs of equal neighbours below `reach` in magnitude, and from there on.
int64_t ampd_reduce_neighbours(ampd_reductions* reductions, const void* tensor, double reach);
// Elements of `copy` that are not what `master`, rounded to the format of `copy`, is; a NaN is like a NaN.
int64_t ampd_reduce_unlike(ampd_reductions* reductions, const void* copy, const void* master);

// Six numbers: elements with a change intended, those of them that did not move, elements whose intended change is not finite, the sum of applied times
// intended, that of intended squared, and the part of that which was meant for elements whose bits did not move.
int64_t ampd_reduce_fidelity(ampd_reductions* reductions, const void* before, const void* after, const void* intended);
// The first five, of what a format (enum ampd_dtype, one of 16 bits) had left of the change from `before` to `after`, both in f32.
int64_t ampd_reduce_fidelity_in(ampd_reductions* reductions, const void* before, const void* after, int32_t dtype);

// How an operator changes its first tensor.
enum ampd_intention {
  AMPD_ADDS = 0,         // factor * a
  AMPD_ADDS_NUMBER = 1,  // factor
  AMPD_ADDS_QUOTIENT = 2,  // factor * a / b
  AMPD_ADDS_PRODUCT = 3,   // factor * a * b
  AMPD_SCALES = 4,         // factor * the tensor itself
  AMPD_MULTIPLIES = 5,     // the tensor itself * (a - 1)
  AMPD_DIVIDES = 6,        // the tensor itself * (1 / a - 1)
  AMPD_MOVES_TOWARDS = 7,  // factor * (a - the tensor itself)
};
// Adds to `sum`, an at::Tensor* from ampd_zeros_like, what is meant to be added to `tensor`. 1 where shapes do not fit.
int ampd_intend(void* sum, const void* tensor, int intention, const void* a, const void* b, double factor);

// Owned at::Tensor*, on the tensor's device; null with a message in ampdoctor_last_error(). ampd_drop_tensor ends them.
void* ampd_copy_tensor(const void* tensor);
void* ampd_zeros_like(const void* tensor);  // in f32
void* ampd_hold_tensor(const void* tensor);  // the tensor itself
const void* ampd_impl(const void* owned);
void ampd_drop_tensor(void* owned);

// Waits for the devices and copies the numbers to the host: one copy a device. 1 with a message where that failed.
int ampd_reductions_fetch(ampd_reductions* reductions);
// The numbers of a ticket, after ampd_reductions_fetch; null where there are none.
const double* ampd_reductions_numbers(const ampd_reductions* reductions, int64_t ticket, size_t* count);
// Tickets given out since the last ampd_reductions_clear.
size_t ampd_reductions_count(const ampd_reductions* reductions);
// Forgets all tickets; memory is kept for the next step.
void ampd_reductions_clear(ampd_reductions* reductions);

// For tests: tensors in host memory take the way of a device's tensors from now on.
void ampd_treat_host_as_device(int on);
// For tests: exponents are counted as where the user asked for deterministic algorithms.
void ampd_count_without_atomics(int on);
}
