// What the machine can do at most: bytes read from memory and products computed, a second.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"
#include "system/pool.hpp"

namespace galley {

// Bytes a second, once for each repeat: all threads read `bytes` (rounded up to whole MiB) of
// memory from one end to the other. `huge` asks the system for huge pages, else they are refused.
std::vector<double> read_rates(const Kernels& kernels, Pool& pool, int64_t bytes, bool huge,
                               int repeats);

// Operations a second (a product and its addition are two) on all threads, once for each repeat of
// about `seconds`. int4 weights are multiplied as int8.
std::vector<double> multiply_rates(const Kernels& kernels, Pool& pool, Kind kind, double seconds,
                                   int repeats);

}  // namespace galley
