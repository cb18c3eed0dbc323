#include "rounding.h"

#include <limits>

#include "statistics.h"

namespace {

constexpr double INFINITE = std::numeric_limits<double>::infinity();

// The number of true elements, or the sum of numbers, at a place of a row.
void put(const at::Tensor& row, int64_t at, const at::Tensor& values) {
  at::Tensor place = row.select(0, at);
  at::sum_out(place, values.reshape({-1}), at::IntArrayRef{0}, false, at::kDouble);
}

at::Tensor is_finite(const at::Tensor& values) { return values.abs() < INFINITE; }

// Whole numbers with more significant bits than these.
at::Tensor need_more_bits(const at::Tensor& magnitudes, int64_t bits) {
  const at::Tensor lowest = at::bitwise_and(magnitudes, -magnitudes).clamp_min_(1);
  return at::bitwise_right_shift(magnitudes, bits) >= lowest;
}

// As f32, whatever it was, and exactly as f64 from there.
at::Tensor single(const at::Tensor& values) { return values.to(at::kFloat); }
at::Tensor exact(const at::Tensor& values) { return single(values).to(at::kDouble); }

// The first five numbers of a fidelity, all arguments in f32.
void write_five(const at::Tensor& before, const at::Tensor& after, const at::Tensor& intended, const at::Tensor& row) {
  const at::Tensor finite = is_finite(intended);
  const at::Tensor counts = at::logical_and(finite, intended != 0);
  const at::Tensor wanted = intended.masked_fill(counts.logical_not(), 0).to(at::kDouble);
  // A weight that was not finite before or after has no change to speak of.
  const at::Tensor applied = at::nan_to_num(after - before, 0.0, 0.0, 0.0).to(at::kDouble);
  put(row, 0, counts);
  put(row, 1, at::logical_and(counts, after == before));
  put(row, 2, finite.logical_not());
  put(row, 3, applied * wanted);
  put(row, 4, wanted * wanted);
}

at::ScalarType bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 2: return at::kShort;
    case 4: return at::kInt;
    default: return at::kLong;
  }
}

}  // namespace

namespace ampdoctor {

void write_integers(const at::Tensor& tensor, const at::Tensor& row) {
  at::Tensor magnitudes;
  if (tensor.is_floating_point()) {
    const at::Tensor whole = at::logical_and(tensor == at::trunc(tensor), tensor.abs() <= 1e15);
    put(row, 2, whole.logical_not());
    magnitudes = at::where(whole, tensor, at::zeros_like(tensor)).to(at::kLong).abs_();
  } else {
    row.select(0, 2).zero_();
    magnitudes = tensor.to(at::kLong).abs();
  }
  // The magnitude of the least integer is the least integer: beyond everything.
  const at::Tensor beyond = at::logical_or(magnitudes > 65504, magnitudes < 0);
  put(row, 0, at::logical_or(need_more_bits(magnitudes, 11), beyond));
  put(row, 1, need_more_bits(magnitudes, 8));
}

void write_neighbours(const at::Tensor& tensor, double reach, const at::Tensor& row) {
  uint64_t multiplicity = 1;
  const at::Tensor values = single(elements_of(tensor, &multiplicity));
  put(row, 0, values != at::trunc(values));
  const at::Tensor first = values.slice(0, 0, values.numel() - 1);
  const at::Tensor equal = first == values.slice(0, 1);
  const at::Tensor below = first.abs() < reach;
  put(row, 1, at::logical_and(equal, below));
  put(row, 2, at::logical_and(equal, below.logical_not()));
}

void write_unlike(const at::Tensor& copy, const at::Tensor& master, const at::Tensor& row) {
  const at::Tensor held = single(copy), rounded = single(master.to(copy.scalar_type()));
  const at::Tensor both_nan = at::logical_and(held != held, rounded != rounded);
  put(row, 0, at::logical_and(held != rounded, both_nan.logical_not()));
}

void write_fidelity(const at::Tensor& before, const at::Tensor& after, const at::Tensor& intended, const at::Tensor& row) {
  write_five(single(before), single(after), intended, row);
  const auto bits = bits_of(before);
  const at::Tensor unmoved = at::logical_and(before.view(bits) == after.view(bits), is_finite(intended));
  const at::Tensor energy = intended.masked_fill(unmoved.logical_not(), 0).to(at::kDouble);
  put(row, 5, energy * energy);
}

void write_fidelity_in(const at::Tensor& before, const at::Tensor& after, at::ScalarType weights, const at::Tensor& row) {
  const at::Tensor change = after - before;
  const at::Tensor held = single(before.to(weights));
  write_five(held, single((held + change).to(weights)), change, row);
}

void add_intention(at::Tensor& sum, const at::Tensor& tensor, ampd_intention intention, const at::Tensor* a, const at::Tensor* b,
                   double factor) {
  const auto operand = [](const at::Tensor* t) { return exact(*t); };
  at::Tensor change;
  switch (intention) {
    case AMPD_ADDS: change = factor * operand(a); break;
    // Rounded to f32 first, as every other change is.
    case AMPD_ADDS_NUMBER: sum.add_(static_cast<float>(factor)); return;
    case AMPD_ADDS_QUOTIENT: change = factor * (operand(a) / operand(b)); break;
    case AMPD_ADDS_PRODUCT: change = factor * (operand(a) * operand(b)); break;
    case AMPD_SCALES: change = factor * exact(tensor); break;
    case AMPD_MULTIPLIES: change = exact(tensor) * (operand(a) - 1); break;
    case AMPD_DIVIDES: change = exact(tensor) * (1 / operand(a) - 1); break;
    case AMPD_MOVES_TOWARDS: change = factor * (operand(a) - exact(tensor)); break;
  }
  sum.add_(single(change));
}

}  // namespace ampdoctor
