// bfloat16 by AVX-512's instructions for it.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// To the nearest, ties to even; NaN stays NaN. Numbers below 2^-126 become 0.
GALLEY_INLINE void store_bf16(uint16_t* a, Floats v) {
    const __m256bh halves = _mm512_cvtneps_pbh(v.p[0]);
    memcpy(a, &halves, sizeof halves);
}

// 16 pairs of bfloat16.
struct Pairs {
    __m512bh v;
};
// Bytes `at` and `at + 1` of each lane's four, signed, kWidened times as large.
GALLEY_INLINE Pairs widen_pair(Bytes w, int at) {
    const __m512i first = (__m512i)to_floats(move_up(w, at)).p[0];
    const __m512i second = (__m512i)to_floats(move_up(w, at + 1)).p[0];
    return {(__m512bh)_mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second)};
}
// The same of bytes from -16 to 15: a table holds them all.
GALLEY_INLINE Pairs widen_small_pair(Bytes w, int at) {
    alignas(64) static constexpr uint16_t kBF16[32] = {
        0x0000, 0x4b80, 0x4c00, 0x4c40, 0x4c80, 0x4ca0, 0x4cc0, 0x4ce0, 0x4d00, 0x4d10, 0x4d20,
        0x4d30, 0x4d40, 0x4d50, 0x4d60, 0x4d70, 0xcd80, 0xcd70, 0xcd60, 0xcd50, 0xcd40, 0xcd30,
        0xcd20, 0xcd10, 0xcd00, 0xcce0, 0xccc0, 0xcca0, 0xcc80, 0xcc40, 0xcc00, 0xcb80};
    const __m512i lanes = _mm512_set4_epi32(0x000c000c, 0x00080008, 0x00040004, 0);
    const int32_t both = static_cast<int32_t>(0x80018000u) + at * 0x00010001;
    const __m512i from = _mm512_add_epi32(lanes, _mm512_set1_epi32(both));
    const __m512i halves = _mm512_shuffle_epi8((__m512i)w.p[0], from);
    return {(__m512bh)_mm512_permutexvar_epi16(halves, _mm512_load_si512(kBF16))};
}
GALLEY_INLINE Pairs load_pairs(const uint16_t* w) { return {(__m512bh)_mm512_loadu_si512(w)}; }
GALLEY_INLINE Pairs splat_pair(const uint16_t* x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return {(__m512bh)_mm512_set1_epi32(pair)};
}
// acc + x[0] * w[0] + x[1] * w[1] in each lane.
GALLEY_INLINE Floats dot_pairs(Floats acc, Pairs x, Pairs w) {
    acc.p[0] = _mm512_dpbf16_ps(acc.p[0], x.v, w.v);
    return acc;
}

}  // namespace GALLEY_ISA
}  // namespace galley
