// Dot products of bytes by vpmaddubsw, which sums two products in 16 bits and saturates.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// acc[lane] += sum over j < 4 of (w[4 * lane + j] - 128) * x[j], w unsigned, x signed. Products of
// w itself would saturate: they are those of |w - 128| and of x with its sign.
constexpr int32_t kInt8Offset = 0;
GALLEY_INLINE Ints dot_bytes(Ints acc, Bytes w, int32_t x) {
    GALLEY_PARTS acc.p[i] += add_pairs(multiply_signed(w.p[i] ^ 0x80808080u, x));
    return acc;
}

// acc[lane] += sum over j < 4 of w[4 * lane + j] * x[j], w unsigned and below 128, x signed.
constexpr bool kNarrowGains = true;  // so that such weights are worth having
GALLEY_INLINE Ints dot_narrow(Ints acc, Bytes w, int32_t x) {
    GALLEY_PARTS acc.p[i] += add_pairs(multiply_unsigned(w.p[i], x));
    return acc;
}

// Sums of products of weights below 16 and signed bytes. Two such products are 3810 at most, so
// eight times two are added in 16 bits and widened once.
struct NibbleSums {
    HalvesPart p[kParts];
};
constexpr int kNibbleDots = 8;  // that there is place for
GALLEY_INLINE void dot_nibbles(NibbleSums& sums, Bytes w, int32_t x) {
    GALLEY_PARTS {
        sums.p[i] += multiply_unsigned(w.p[i], x);
        // GCC 12 adds in another order otherwise, and spills what waits for its turn.
        asm("" : "+v"(sums.p[i]));
    }
}
GALLEY_INLINE Ints add_sums(Ints acc, NibbleSums sums) {
    GALLEY_PARTS acc.p[i] += add_pairs(sums.p[i]);
    return acc;
}
// acc + products of numbers below 2^15 and of the lower 16 bits of `b`, which are signed.
GALLEY_INLINE IntPart dot_halves(IntPart acc, IntPart a, int32_t b) {
    return acc + add_products((HalvesPart)a, b);
}
constexpr int kDotsInFlight = 0;  // sums of so many parts do not wait for each other

}  // namespace GALLEY_ISA
}  // namespace galley
