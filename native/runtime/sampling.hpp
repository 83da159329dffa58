// Where a row of logits is greatest, and its best ids.
#pragma once

#include "kernels/kernels.hpp"

namespace galley {

// Where x[n] is greatest, the first of equals; its first NaN if it has one. n > 0.
int64_t argmax(const Kernels& kernels, const float* x, int64_t n);

// The ids of the `count` greatest of x[n], greatest first, equals by id, NaN last. count <= n.
void top_k(const Kernels& kernels, const float* x, int64_t n, int64_t count, int64_t* ids);

}  // namespace galley
