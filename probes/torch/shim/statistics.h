// Statistics of tensors by ATen's operators, each enqueued on the tensor's device and none of them waited for.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include "reductions.h"

namespace ampdoctor {

// Within the life of one, operators are not observed, recorded by autograd or cast by autocast.
class Unseen {
 public:
  Unseen();
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  at::DisableRecordFunctionGuard silent_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
  at::AutoDispatchBelowADInplaceOrView no_autograd_;
};

// The elements of a tensor in one dimension, each once: those of a dense tensor in the order in which they lie in memory. `multiplicity` is how often each of
// them stands in the tensor.
at::Tensor elements_of(const at::Tensor& tensor, uint64_t* multiplicity);

// What a row of statistics of this format holds.
ampd_statistics_form form_of(at::ScalarType dtype);

// Writes a row of statistics of a tensor in one dimension that has elements, at most AMPD_CHUNK.
void write_statistics(const at::Tensor& elements, const at::Tensor& row);

void set_count_without_atomics(bool on);

}  // namespace ampdoctor
