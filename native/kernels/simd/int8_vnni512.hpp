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
constexpr int kDotsInFlight = 8;  // sums of so many parts would wait for each other

}  // namespace GALLEY_ISA
}  // namespace galley

#include "int8_unsigned.hpp"
