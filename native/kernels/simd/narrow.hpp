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

// Rows become columns.
GALLEY_INLINE void transpose(Floats (&a)[kLanes]) {
    float rows[kLanes][kLanes], columns[kLanes][kLanes];
    for (int i = 0; i < kLanes; ++i) store(rows[i], a[i]);
    for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < kLanes; ++j) columns[j][i] = rows[i][j];
    for (int i = 0; i < kLanes; ++i) a[i] = load(columns[i]);
}

}  // namespace GALLEY_ISA
}  // namespace galley
