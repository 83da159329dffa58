// bfloat16 where no instruction multiplies it or rounds to it: by way of floats.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// To the nearest, ties to even; NaN stays NaN.
GALLEY_INLINE void store_bf16(uint16_t* a, Floats v) {
    GALLEY_PARTS {
        UintPart bits = (UintPart)v.p[i];
        UintPart rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        rounded = v.p[i] == v.p[i] ? rounded : (UintPart{} + 0x7fc0);
        HalfPart half = __builtin_convertvector(rounded, HalfPart);
        memcpy(a + i * kWidth, &half, sizeof half);
    }
}

// 16 pairs of bfloat16.
struct Pairs {
    Floats even, odd;
};
// Bytes `at` and `at + 1` of each lane's four, signed, kWidened times as large.
GALLEY_INLINE Pairs widen_pair(Bytes w, int at) {
    return {to_floats(move_up(w, at)), to_floats(move_up(w, at + 1))};
}
// The same of bytes from -16 to 15.
GALLEY_INLINE Pairs widen_small_pair(Bytes w, int at) { return widen_pair(w, at); }
GALLEY_INLINE Pairs load_pairs(const uint16_t* w) {
    Pairs r;
    widen_pairs(w, r.even, r.odd);
    return r;
}
GALLEY_INLINE Pairs splat_pair(const uint16_t* x) {
    const UintPart both = splat_both(x);
    Pairs r;
    GALLEY_PARTS {
        r.even.p[i] = (FloatPart)(both << 16);
        r.odd.p[i] = (FloatPart)(both & 0xffff0000u);
    }
    return r;
}
// acc + x[0] * w[0] + x[1] * w[1] in each lane.
GALLEY_INLINE Floats dot_pairs(Floats acc, Pairs x, Pairs w) {
    return fma(x.odd, w.odd, fma(x.even, w.even, acc));
}

}  // namespace GALLEY_ISA
}  // namespace galley
