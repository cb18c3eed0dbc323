// What rounding does to integers, to copies of weights and to the steps of an optimizer, by ATen's operators on the tensor's device.
#pragma once

#include <ATen/ATen.h>

#include "reductions.h"

namespace ampdoctor {

// Each writes the numbers that the function of the same name in reductions.h promises.
void write_integers(const at::Tensor& tensor, const at::Tensor& row);
void write_neighbours(const at::Tensor& tensor, double reach, const at::Tensor& row);
void write_unlike(const at::Tensor& copy, const at::Tensor& master, const at::Tensor& row);
void write_fidelity(const at::Tensor& before, const at::Tensor& after, const at::Tensor& intended, const at::Tensor& row);
void write_fidelity_in(const at::Tensor& before, const at::Tensor& after, at::ScalarType weights, const at::Tensor& row);

// Null where nothing is to be taken.
void add_intention(at::Tensor& sum, const at::Tensor& tensor, ampd_intention intention, const at::Tensor* a, const at::Tensor* b,
                   double factor);

}  // namespace ampdoctor
