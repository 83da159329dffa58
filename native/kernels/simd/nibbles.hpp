// Where a register has four floats: halves of bytes as floats, by way of memory, and rows as
// columns.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// Eight bytes: their lower halves, then their upper ones.
GALLEY_INLINE Floats load_nibbles(const uint8_t* a) {
    uint8_t halves[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) halves[i] = a[i] & 15;
    for (int i = 0; i < kLanes / 2; ++i) halves[i + kLanes / 2] = a[i] >> 4;
    return to_floats(load_uint8(halves));
}
// Sixteen bytes: their lower halves, and their upper ones.
GALLEY_INLINE FloatsPair load_nibble_pairs(const uint8_t* a) {
    uint8_t first[kLanes], second[kLanes];
    for (int i = 0; i < kLanes; ++i) first[i] = a[i] & 15;
    for (int i = 0; i < kLanes; ++i) second[i] = a[i] >> 4;
    return {to_floats(load_uint8(first)), to_floats(load_uint8(second))};
}

// Rows become columns, by squares of four by four.
GALLEY_INLINE void transpose(Floats (&a)[kLanes]) {
    Floats columns[kLanes];
    GALLEY_UNROLL for (int row = 0; row < kParts; ++row)
        GALLEY_UNROLL for (int part = 0; part < kParts; ++part) {
        const Floats* from = a + row * kWidth;
        const FloatPart w = from[0].p[part], x = from[1].p[part], y = from[2].p[part],
                        z = from[3].p[part];
        GALLEY_UNROLL for (int i = 0; i < kWidth; ++i) columns[part * kWidth + i].p[row] =
            FloatPart{w[i], x[i], y[i], z[i]};
    }
    GALLEY_UNROLL for (int i = 0; i < kLanes; ++i) a[i] = columns[i];
}

}  // namespace GALLEY_ISA
}  // namespace galley
