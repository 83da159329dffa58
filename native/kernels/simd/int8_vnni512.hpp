// Dot products of bytes by AVX-512 VNNI.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// acc[lane] += sum over j < 4 of w[4 * lane + j] * x[j], w unsigned, x signed.
GALLEY_INLINE Ints dot_unsigned(Ints acc, Bytes w, int32_t x) {
    acc.p[0] =
        (IntPart)_mm512_dpbusd_epi32((__m512i)acc.p[0], (__m512i)w.p[0], _mm512_set1_epi32(x));
    return acc;
}
// acc + products of numbers below 2^15 and of the lower 16 bits of `b`, which are signed.
GALLEY_INLINE IntPart dot_halves(IntPart acc, IntPart a, int32_t b) {
    return (IntPart)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, _mm512_set1_epi32(b));
}
constexpr int kDotsInFlight = 8;  // sums of so many parts would wait for each other

}  // namespace GALLEY_ISA
}  // namespace galley

#include "int8_unsigned.hpp"
