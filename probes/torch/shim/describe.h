// What a tensor looks like to the observer.
#pragma once

#include <ATen/ATen.h>

#include "observer.h"

namespace ampdoctor {

// Whether backward can reach the tensor.
bool is_tracked(const at::Tensor& tensor);

// Fills `out`; false where the tensor is undefined. Waits for nothing.
//
// Of a sparse tensor in coordinate form it is the stored values that are described: what is not stored is zero, and not counted. They are as they lie, where a place
// may be stored several times, each with a part of its value.
bool describe(const at::Tensor& tensor, ampd_tensor* out);

// The same of a gradient: a sparse one has each place once, as an optimizer sees it. To bring a sparse gradient on a GPU into that form, LibTorch waits for the GPU.
bool describe_gradient(const at::Tensor& gradient, ampd_tensor* out);

// The storage of a tensor, or of the values of a sparse one; null where there is none.
c10::StorageImpl* storage_of(const at::Tensor& tensor);

// Lets go of what this thread copied for descriptions.
void release_copies();

// For tests: whether tensors in host memory are described as a device's.
void treat_host_as_device(bool on);

// Calls `f` with every tensor in an operator's argument or result: alone, in a list or in a tuple.
template <class F>
void each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorList()) f(t);
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) each_tensor(element, f);
  } else if (value.isList()) {
    const auto list = value.toListRef();
    if (!list.empty() && (list[0].isTensor() || list[0].isNone())) {
      for (const auto& element : list) each_tensor(element, f);
    }
  }
}

}  // namespace ampdoctor
