// Halves of bytes as floats, by way of memory, where a register has four
// floats.
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

}  // namespace GALLEY_ISA
}  // namespace galley
