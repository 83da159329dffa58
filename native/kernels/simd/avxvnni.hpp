// AVX-VNNI: client CPUs since Alder Lake, AVX2 with dot products of bytes. The same text serves the
// same registers of AVX-512 VNNI with VL, so it can be tested on a server.
#pragma once

#include "x86_256.hpp"

namespace galley {
namespace GALLEY_ISA {

// acc[lane] += sum over j < 4 of w[4 * lane + j] * x[j], w unsigned, x signed.
GALLEY_INLINE Ints dot_unsigned(Ints acc, Bytes w, int32_t x) {
    GALLEY_PARTS acc.p[i] =
        (IntPart)_mm256_dpbusd_epi32((__m256i)acc.p[i], (__m256i)w.p[i], _mm256_set1_epi32(x));
    return acc;
}
// acc + products of numbers below 2^15 and of the lower 16 bits of `b`, which are signed.
GALLEY_INLINE IntPart dot_halves(IntPart acc, IntPart a, int32_t b) {
    return (IntPart)_mm256_dpwssd_epi32((__m256i)acc, (__m256i)a, _mm256_set1_epi32(b));
}
constexpr int kDotsInFlight = 4;  // sums of so many parts would wait for each other

}  // namespace GALLEY_ISA
}  // namespace galley

#include "int8_unsigned.hpp"
