// Floats and conversions of AVX2, with FMA and F16C: two registers of eight.
#pragma once

#include <immintrin.h>

namespace galley {
namespace GALLEY_ISA {
constexpr int kWidth = 8;
}
}  // namespace galley

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// a * b + c, rounded once.
GALLEY_INLINE Floats fma(Floats a, Floats b, Floats c) {
    Floats r;
    GALLEY_PARTS r.p[i] = _mm256_fmadd_ps(a.p[i], b.p[i], c.p[i]);
    return r;
}
GALLEY_INLINE DoublePart fma(DoublePart a, DoublePart b, DoublePart c) {
    return _mm256_fmadd_pd(a, b, c);
}

// Bit i: lane i of `a` is not at most that of `b`; so it is if either is NaN.
GALLEY_INLINE uint32_t not_at_most(Floats a, Floats b) {
    uint32_t lanes = 0;
    GALLEY_PARTS {
        const uint32_t part = _mm256_movemask_ps(_mm256_cmp_ps(a.p[i], b.p[i], _CMP_NLE_UQ));
        lanes |= part << i * kWidth;
    }
    return lanes;
}

// Lanes folded in halves; of two of which one is NaN, the former.
GALLEY_INLINE float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(a.p[1], a.p[0]);
    __m128 v = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    v = _mm_max_ps(_mm_movehl_ps(v, v), v);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(v), v));
}

GALLEY_INLINE int32_t sum_of_lanes(IntPart a) {
    const __m256i v = (__m256i)a;
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 1)));
}

// To the nearest, ties to even; |a| < 2^22.
GALLEY_INLINE Ints to_ints(Floats a) {
    Ints r;
    GALLEY_PARTS r.p[i] = (IntPart)_mm256_cvtps_epi32(a.p[i]);
    return r;
}

// Between narrow elements and wide ones GCC 12 takes several instructions where there is one.
// Of integers that a byte holds.
GALLEY_INLINE void store_bytes(int8_t* a, Ints v) {
    const __m256i halves = _mm256_permute4x64_epi64(
        _mm256_packs_epi32((__m256i)v.p[0], (__m256i)v.p[1]), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(a),
        _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}
GALLEY_INLINE Ints load_int8(const int8_t* a) {
    Ints r;
    GALLEY_PARTS r.p[i] = (IntPart)_mm256_cvtepi8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a + i * kWidth)));
    return r;
}
GALLEY_INLINE Ints load_uint8(const uint8_t* a) {
    Ints r;
    GALLEY_PARTS r.p[i] = (IntPart)_mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a + i * kWidth)));
    return r;
}
// Eight bytes: their lower halves, then their upper ones.
GALLEY_INLINE Floats load_nibbles(const uint8_t* a) {
    const __m128i low = _mm_set1_epi8(15);
    const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a));
    const __m128i halves[] = {_mm_and_si128(both, low),
                              _mm_and_si128(_mm_srli_epi16(both, 4), low)};
    Floats r;
    GALLEY_PARTS r.p[i] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(halves[i]));
    return r;
}
// Sixteen bytes: their lower halves, and their upper ones.
GALLEY_INLINE FloatsPair load_nibble_pairs(const uint8_t* a) {
    const __m128i low = _mm_set1_epi8(15);
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    const __m128i first = _mm_and_si128(both, low);
    const __m128i second = _mm_and_si128(_mm_srli_epi16(both, 4), low);
    FloatsPair r;
    GALLEY_PARTS r.first.p[i] =
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(i ? _mm_srli_si128(first, 8) : first));
    GALLEY_PARTS r.second.p[i] =
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(i ? _mm_srli_si128(second, 8) : second));
    return r;
}
GALLEY_INLINE Floats load_bf16(const uint16_t* a) {
    Floats r;
    GALLEY_PARTS {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i * kWidth));
        r.p[i] = (FloatPart)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
    }
    return r;
}
GALLEY_INLINE Floats load_f16(const uint16_t* a) {
    Floats r;
    GALLEY_PARTS r.p[i] =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i * kWidth)));
    return r;
}

// Products of the bytes of `w` and, four by four, the signed bytes of `x`; two neighbors are
// summed in 16 bits, with saturation. `w` is unsigned in one, signed in the other.
GALLEY_INLINE HalvesPart multiply_unsigned(UintPart w, int32_t x) {
    return (HalvesPart)_mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(x));
}
GALLEY_INLINE HalvesPart multiply_signed(UintPart w, int32_t x) {
    const __m256i s = (__m256i)w;
    return (HalvesPart)_mm256_maddubs_epi16(_mm256_abs_epi8(s),
                                            _mm256_sign_epi8(_mm256_set1_epi32(x), s));
}
GALLEY_INLINE UintPart shift_right(UintPart a, int32_t count) { return a >> count; }
// Sums of two neighbors' products with the halves of `x`, all of them signed.
GALLEY_INLINE IntPart add_products(HalvesPart halves, int32_t x) {
    return (IntPart)_mm256_madd_epi16((__m256i)halves, _mm256_set1_epi32(x));
}
GALLEY_INLINE IntPart add_pairs(HalvesPart halves) { return add_products(halves, 0x10001); }

// Byte `at` of each lane's four, at the lane's upper end, with zeros below.
GALLEY_INLINE Ints move_up(Bytes w, int at) {
    Ints moved;
    const __m256i lanes =
        _mm256_set_epi32(12 << 24, 8 << 24, 4 << 24, 0, 12 << 24, 8 << 24, 4 << 24, 0);
    const __m256i from = _mm256_add_epi32(lanes, _mm256_set1_epi32(0x00808080 + (at << 24)));
    GALLEY_PARTS moved.p[i] = (IntPart)_mm256_shuffle_epi8((__m256i)w.p[i], from);
    return moved;
}

// One pair of bfloat16 in each lane. The load is named, as GCC 12 takes the two apart before it
// else.
GALLEY_INLINE UintPart splat_both(const uint16_t* x) {
    return (UintPart)_mm256_broadcast_ss(reinterpret_cast<const float*>(x));
}

// GCC 12 spills one of a loop's sums otherwise, and each product waits for memory.
GALLEY_INLINE void keep_in_registers(Floats& v) { GALLEY_PARTS asm("" : "+x"(v.p[i])); }

// Rows become columns, by quarters of eight by eight.
GALLEY_INLINE void transpose(Floats (&a)[kLanes]) {
    Floats columns[kLanes];
    GALLEY_UNROLL for (int q = 0; q < 4; ++q) {
        const int row = q / 2, part = q % 2;
        __m256 pairs[kWidth], fours[kWidth];
        GALLEY_UNROLL for (int i = 0; i < kWidth; i += 2) {
            const __m256 x = a[row * kWidth + i].p[part], y = a[row * kWidth + i + 1].p[part];
            pairs[i] = _mm256_unpacklo_ps(x, y);
            pairs[i + 1] = _mm256_unpackhi_ps(x, y);
        }
        GALLEY_UNROLL for (int i = 0; i < kWidth; i += 4)
            GALLEY_UNROLL for (int j = 0; j < 2; ++j) {
            const __m256d x = (__m256d)pairs[i + j], y = (__m256d)pairs[i + j + 2];
            fours[i + 2 * j] = (__m256)_mm256_unpacklo_pd(x, y);
            fours[i + 2 * j + 1] = (__m256)_mm256_unpackhi_pd(x, y);
        }
        // Half h of fours[4 * i + j] holds column 4 * h + j of the rows from 4 * i on.
        GALLEY_UNROLL for (int j = 0; j < 4; ++j) {
            columns[part * kWidth + j].p[row] =
                (FloatPart)_mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
            columns[part * kWidth + 4 + j].p[row] =
                (FloatPart)_mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
        }
    }
    GALLEY_UNROLL for (int i = 0; i < kLanes; ++i) a[i] = columns[i];
}

}  // namespace GALLEY_ISA
}  // namespace galley

#include "bf16_widened.hpp"
#include "powers.hpp"
