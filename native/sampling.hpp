// What sampling asks of a row of logits: its greatest, its best ids, the sums of its exponentials.
#pragma once

#include "kernels.hpp"
#include "pool.hpp"

namespace galley {

// Where each row of x[rows][n] is greatest, the first of equals; its first NaN if it has one. n >
// 0.
void greatest(Pool& pool, const float* x, int64_t rows, int64_t n, int64_t* ids);

// The ids of the `count` greatest of x[n], greatest first, equals by id, NaN last. count <= n.
template <class T>
void best(const T* x, int64_t n, int64_t count, int64_t* ids);

// For each kExpBlock of x[n] the sum of exp((x - most) / temperature), in double. `most` is finite
// and no x is greater.
template <class T>
void exp_sums(const Kernels& kernels, const T* x, int64_t n, double most, double temperature,
              double* sums);

}  // namespace galley
