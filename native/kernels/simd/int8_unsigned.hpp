// Dot products of bytes, where the set multiplies unsigned bytes by signed ones and sums in 32
// bits.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// acc[lane] += sum over j < 4 of (w[4 * lane + j] - (128 - kInt8Offset)) * x[j].
constexpr int32_t kInt8Offset = 128;
GALLEY_INLINE Ints dot_bytes(Ints acc, Bytes w, int32_t x) { return dot_unsigned(acc, w, x); }

constexpr bool kNarrowGains = false;  // weights below 128 are multiplied no faster

// Sums of products of weights below 16, and how many of them there is place for; 0: no end.
using NibbleSums = Ints;
constexpr int kNibbleDots = 0;
GALLEY_INLINE void dot_nibbles(NibbleSums& sums, Bytes w, int32_t x) {
    sums = dot_unsigned(sums, w, x);
}
GALLEY_INLINE Ints add_sums(Ints acc, NibbleSums sums) { return acc + sums; }

}  // namespace GALLEY_ISA
}  // namespace galley
