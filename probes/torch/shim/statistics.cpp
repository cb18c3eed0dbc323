#include "statistics.h"

#include <ATen/Context.h>

#include <atomic>
#include <cmath>
#include <limits>

namespace {

constexpr double INFINITE = std::numeric_limits<double>::infinity();

// The exponent field of an f64, and where it begins.
constexpr int64_t MANTISSA_BITS = 52;
constexpr int64_t BIAS = 1023;

// f16, bf16 and f32 have these exponents, as f64 all of them are normal numbers.
constexpr int64_t NARROW_FIRST = -149;
constexpr int64_t NARROW_EXPONENTS = 277;
// f64 itself.
constexpr int64_t WIDE_FIRST = -1074;
constexpr int64_t WIDE_EXPONENTS = 2098;

// What is not finite stands for itself as a number beyond f32's range, so that one histogram counts it too.
constexpr double NAN_MARK = 0x1p128;
constexpr double POSITIVE_MARK = 0x1p129;
constexpr double NEGATIVE_MARK = 0x1p130;
constexpr int64_t MARKS = 3;

std::atomic<bool> without_atomics{false};

bool counts_without_atomics() {
  // ATen's histogram of floats on a GPU refuses to run where the user asked for deterministic algorithms.
  return without_atomics.load(std::memory_order_relaxed) || at::globalContext().deterministicAlgorithms();
}

// How many of `keys`, whole numbers in f32, are `first`, `first` + 1, ...: exact, since there are at most 2^22 of them.
at::Tensor count(const at::Tensor& keys, int64_t first, int64_t bins) {
  if (!counts_without_atomics()) return at::histc(keys, bins, first, first + bins);
  const at::Tensor sorted = std::get<0>(keys.sort());
  const at::Tensor edges = at::arange(first, first + bins + 1, keys.options());
  const at::Tensor below = at::searchsorted(sorted, edges);
  return below.slice(0, 1) - below.slice(0, 0, bins);
}

at::Tensor exponent_field(const at::Tensor& magnitudes) {
  return at::bitwise_right_shift(magnitudes.view(at::kLong), MANTISSA_BITS);
}

void write_sums(const at::Tensor& finite, const at::Tensor& row) {
  at::Tensor sum = row.select(0, AMPD_SUM), norm = row.select(0, AMPD_NORM);
  at::sum_out(sum, finite, at::IntArrayRef{0});
  at::linalg_vector_norm_out(norm, finite, 2);
}

void write_counts(const at::Tensor& counts, const at::Tensor& row) { row.slice(0, AMPD_STATISTICS).copy_(counts); }

// `magnitudes` may hold marks or infinities; it is changed.
void write_smallest(at::Tensor magnitudes, const at::Tensor& row) {
  at::Tensor smallest = row.select(0, AMPD_MIN_ABS);
  at::amin_out(smallest, magnitudes.masked_fill_(magnitudes == 0, INFINITE), {0});
}

void write_narrow(const at::Tensor& elements, const at::Tensor& row) {
  at::Tensor exact = elements.to(at::kDouble);
  const at::Tensor magnitudes = at::nan_to_num(exact, NAN_MARK, POSITIVE_MARK, NEGATIVE_MARK).abs_();
  const at::Tensor keys = exponent_field(magnitudes).to(at::kFloat);
  write_counts(count(keys, NARROW_FIRST + BIAS, NARROW_EXPONENTS + MARKS), row);
  write_smallest(magnitudes, row);
  at::nan_to_num_(exact, 0.0, 0.0, 0.0);
  at::Tensor largest = row.select(0, AMPD_MAX_ABS);
  at::linalg_vector_norm_out(largest, exact, INFINITE);
  write_sums(exact, row);
}

// The places of exponents counted from f64's lowest, what is not finite behind them, zeros before them.
at::Tensor wide_keys(const at::Tensor& elements, const at::Tensor& magnitudes) {
  const at::Tensor field = exponent_field(magnitudes);
  // A subnormal is a whole number times 2^-1074, and as a number of its own it is normal.
  const at::Tensor below = exponent_field(magnitudes.view(at::kLong).to(at::kDouble)) - BIAS;
  const at::Tensor normal = field + (-BIAS - WIDE_FIRST);
  at::Tensor keys = at::where(field == 0, below, normal).to(at::kFloat);
  // An infinity's field gives the place of NaN.
  keys.add_(elements == INFINITE);
  return keys.add_(elements == -INFINITE, 2);
}

// A power of two that brings the largest element to 1, or near it.
at::Tensor scale_for(const at::Tensor& largest) {
  const at::Tensor field = exponent_field(largest).clamp_(BIAS - 1000, BIAS + 1000);
  return at::bitwise_left_shift(2 * BIAS - field, MANTISSA_BITS).view(at::kDouble);
}

void write_wide(const at::Tensor& elements, const at::Tensor& row) {
  const at::Tensor magnitudes = elements.abs();
  write_counts(count(wide_keys(elements, magnitudes), 0, WIDE_EXPONENTS + MARKS), row);
  write_smallest(at::nan_to_num(magnitudes, INFINITE, INFINITE, INFINITE), row);
  at::Tensor finite = at::nan_to_num(elements, 0.0, 0.0, 0.0);
  at::Tensor largest = row.select(0, AMPD_MAX_ABS);
  at::linalg_vector_norm_out(largest, finite, INFINITE);
  write_sums(finite.mul_(scale_for(largest)), row);
}

}  // namespace

namespace ampdoctor {

Unseen::Unseen() : no_autocast_(c10::autocast_dispatch_keyset) {}

at::Tensor elements_of(const at::Tensor& tensor, uint64_t* multiplicity) {
  *multiplicity = 1;
  at::Tensor once = tensor;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) <= 1) continue;
    *multiplicity *= static_cast<uint64_t>(tensor.size(dim));
    once = once.narrow(dim, 0, 1);
  }
  if (once.is_non_overlapping_and_dense()) return once.as_strided({once.numel()}, {1});
  return once.reshape({-1});
}

ampd_statistics_form form_of(at::ScalarType dtype) {
  const bool wide = dtype == at::kDouble;
  ampd_statistics_form form{};
  form.first = static_cast<int32_t>(wide ? WIDE_FIRST : NARROW_FIRST);
  form.exponents = static_cast<int32_t>(wide ? WIDE_EXPONENTS : NARROW_EXPONENTS);
  form.scaled = wide;
  return form;
}

void write_statistics(const at::Tensor& elements, const at::Tensor& row) {
  if (elements.scalar_type() == at::kDouble) {
    write_wide(elements, row);
  } else {
    write_narrow(elements, row);
  }
}

void set_count_without_atomics(bool on) { without_atomics = on; }

}  // namespace ampdoctor
