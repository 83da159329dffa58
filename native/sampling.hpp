// What sampling asks of a row of logits: its best ids, and the sums of its exponentials.
#pragma once

#include "kernels.hpp"

namespace galley {

// The ids of the `count` greatest of x[n], greatest first, equals by id, NaN last. count <= n.
template <class T>
void best(const T* x, int64_t n, int64_t count, int64_t* ids);

// For each kExpBlock of x[n] the sum of exp((x - most) / temperature), in double. `most` is finite
// and no x is greater.
template <class T>
void exp_sums(const Kernels& kernels, const T* x, int64_t n, double most, double temperature,
              double* sums);

}  // namespace galley
