// Operations on vectors of less than sixteen lanes, or of one lane, by way of memory.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

GALLEY_INLINE float largest(Floats a) {
    float v[kLanes];
    store(v, a);
    for (int n = kLanes / 2; n; n /= 2)
        for (int i = 0; i < n; ++i) v[i] = v[i] < v[i + n] ? v[i + n] : v[i];
    return v[0];
}

GALLEY_INLINE int32_t sum_of_lanes(IntPart a) {
    int32_t total = 0;
    for (int i = 0; i < kWidth; ++i) total += a[i];
    return total;
}

}  // namespace GALLEY_ISA
}  // namespace galley
