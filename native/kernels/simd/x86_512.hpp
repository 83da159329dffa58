// Floats and conversions of AVX-512 (F, BW, VL, DQ): one register of sixteen.
#pragma once

#include <immintrin.h>

namespace galley {
namespace GALLEY_ISA {
constexpr int kWidth = 16;
}
}  // namespace galley

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// a * b + c, rounded once.
GALLEY_INLINE Floats fma(Floats a, Floats b, Floats c) {
    Floats r;
    r.p[0] = _mm512_fmadd_ps(a.p[0], b.p[0], c.p[0]);
    return r;
}
GALLEY_INLINE DoublePart fma(DoublePart a, DoublePart b, DoublePart c) {
    return _mm512_fmadd_pd(a, b, c);
}

// Bit i: lane i of `a` is not at most that of `b`; so it is if either is NaN.
GALLEY_INLINE uint32_t not_at_most(Floats a, Floats b) {
    return _mm512_cmp_ps_mask(a.p[0], b.p[0], _CMP_NLE_UQ);
}

GALLEY_INLINE float largest(Floats a) { return _mm512_reduce_max_ps(a.p[0]); }
GALLEY_INLINE int32_t sum_of_lanes(IntPart a) { return _mm512_reduce_add_epi32((__m512i)a); }

// To the nearest, ties to even; |a| < 2^22.
GALLEY_INLINE Ints to_ints(Floats a) {
    Ints r;
    r.p[0] = (IntPart)_mm512_cvtps_epi32(a.p[0]);
    return r;
}

// Between narrow elements and wide ones GCC 12 takes several instructions where there is one.
// Of integers that a byte holds.
GALLEY_INLINE void store_bytes(int8_t* a, Ints v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a), _mm512_cvtepi32_epi8((__m512i)v.p[0]));
}
GALLEY_INLINE Ints load_int8(const int8_t* a) {
    return {(IntPart)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)))};
}
GALLEY_INLINE Ints load_uint8(const uint8_t* a) {
    return {(IntPart)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)))};
}
// Eight bytes: their lower halves, then their upper ones.
GALLEY_INLINE Floats load_nibbles(const uint8_t* a) {
    const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a));
    const __m128i halves =
        _mm_and_si128(_mm_unpacklo_epi64(both, _mm_srli_epi16(both, 4)), _mm_set1_epi8(15));
    return {(FloatPart)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(halves))};
}
// Sixteen bytes: their lower halves, and their upper ones.
GALLEY_INLINE FloatsPair load_nibble_pairs(const uint8_t* a) {
    const __m128i low = _mm_set1_epi8(15);
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    const __m128i first = _mm_and_si128(both, low);
    const __m128i second = _mm_and_si128(_mm_srli_epi16(both, 4), low);
    return {{(FloatPart)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(first))},
            {(FloatPart)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(second))}};
}
GALLEY_INLINE Floats load_bf16(const uint16_t* a) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
    return {(FloatPart)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)};
}
GALLEY_INLINE Floats load_f16(const uint16_t* a) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)))};
}

// The nearest integers of floats from -126 to 127: exponents of powers of two.
struct Exponents {
    Floats n;
};
GALLEY_INLINE Exponents nearest_exponents(Floats a) {
    return {{(FloatPart)_mm512_roundscale_ps(a.p[0], 0)}};
}
GALLEY_INLINE Floats to_floats(Exponents e) { return e.n; }

// a * 2^e, or 0 where x is below `lowest`.
GALLEY_INLINE Floats scale_by_power(Floats a, Exponents e, Floats x, float lowest) {
    const __mmask16 some = _mm512_cmp_ps_mask(x.p[0], splat(lowest).p[0], _CMP_NLT_UQ);
    return {(FloatPart)_mm512_maskz_scalef_ps(some, a.p[0], e.n.p[0])};
}

// Products of the bytes of `w` and, four by four, the signed bytes of `x`; two neighbors are
// summed in 16 bits, with saturation. `w` is unsigned in one, signed in the other.
GALLEY_INLINE HalvesPart multiply_unsigned(UintPart w, int32_t x) {
    return (HalvesPart)_mm512_maddubs_epi16((__m512i)w, _mm512_set1_epi32(x));
}
GALLEY_INLINE HalvesPart multiply_signed(UintPart w, int32_t x) {
    const __m512i s = (__m512i)w, same = _mm512_set1_epi32(x);
    const __m512i turned =
        _mm512_mask_sub_epi8(same, _mm512_movepi8_mask(s), _mm512_setzero_si512(), same);
    return (HalvesPart)_mm512_maddubs_epi16(_mm512_abs_epi8(s), turned);
}
#if defined(__GFNI__)
// One instruction instead of two, which are executed by the same two ports as dot products on
// Intel's CPUs: bit i of each byte becomes bit i + 4, or 0.
GALLEY_INLINE UintPart upper_nibbles(UintPart bytes) {
    return (UintPart)_mm512_gf2p8affine_epi64_epi8((__m512i)bytes,
                                                   _mm512_set1_epi64(0x1020408000000000), 0);
}
#endif
// With a count for each lane, which is one instruction and comes from memory as it is.
GALLEY_INLINE UintPart shift_right(UintPart a, int32_t count) {
    return (UintPart)_mm512_srlv_epi32((__m512i)a, _mm512_set1_epi32(count));
}
// Sums of two neighbors' products with the halves of `x`, all of them signed.
GALLEY_INLINE IntPart add_products(HalvesPart halves, int32_t x) {
    return (IntPart)_mm512_madd_epi16((__m512i)halves, _mm512_set1_epi32(x));
}
GALLEY_INLINE IntPart add_pairs(HalvesPart halves) { return add_products(halves, 0x10001); }

// Byte `at` of each lane's four, at the lane's upper end, with zeros below.
GALLEY_INLINE Ints move_up(Bytes w, int at) {
    const __m512i lanes = _mm512_set4_epi32(12 << 24, 8 << 24, 4 << 24, 0);
    const __m512i from = _mm512_add_epi32(lanes, _mm512_set1_epi32(0x00808080 + (at << 24)));
    return {(IntPart)_mm512_shuffle_epi8((__m512i)w.p[0], from)};
}

// One pair of bfloat16 in each lane.
GALLEY_INLINE UintPart splat_both(const uint16_t* x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (UintPart)_mm512_set1_epi32(pair);
}

// Rows become columns.
GALLEY_INLINE void transpose(Floats (&a)[kLanes]) {
    __m512 pairs[kLanes], fours[kLanes];
    GALLEY_UNROLL for (int i = 0; i < kLanes; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(a[i].p[0], a[i + 1].p[0]);
        pairs[i + 1] = _mm512_unpackhi_ps(a[i].p[0], a[i + 1].p[0]);
    }
    GALLEY_UNROLL for (int i = 0; i < kLanes; i += 4) GALLEY_UNROLL for (int j = 0; j < 2; ++j) {
        const __m512d x = (__m512d)pairs[i + j], y = (__m512d)pairs[i + j + 2];
        fours[i + 2 * j] = (__m512)_mm512_unpacklo_pd(x, y);
        fours[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(x, y);
    }
    // Quarter q of fours[4 * i + j] holds column 4 * q + j of the rows from 4 * i on.
    GALLEY_UNROLL for (int j = 0; j < 4; ++j) {
        const __m512 low = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x44);
        const __m512 high = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xee);
        const __m512 later_low = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x44);
        const __m512 later_high = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xee);
        a[j].p[0] = (FloatPart)_mm512_shuffle_f32x4(low, later_low, 0x88);
        a[4 + j].p[0] = (FloatPart)_mm512_shuffle_f32x4(low, later_low, 0xdd);
        a[8 + j].p[0] = (FloatPart)_mm512_shuffle_f32x4(high, later_high, 0x88);
        a[12 + j].p[0] = (FloatPart)_mm512_shuffle_f32x4(high, later_high, 0xdd);
    }
}

// Nothing to do: see that of x86_256.hpp.
GALLEY_INLINE void keep_in_registers(Floats&) {}

}  // namespace GALLEY_ISA
}  // namespace galley
