// Products of short integers and of bfloat16, summed into 16 lanes, and short integers as floats:
// what linear layers spend their time on.
#pragma once

#include "vec.hpp"

namespace galley {
namespace GALLEY_ISA {

GALLEY_INLINE int32_t load_four(const uint8_t* x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return four;
}

// acc[lane] += sum over j < 4 of w[4 * lane + j] * x[j], w unsigned, x signed. AVX2's product would
// saturate: it takes |w - 128| and x with its sign, so its sum is that of signed weights already.
#if defined(__AVX512VNNI__)
constexpr int32_t kInt8Offset = 128;
GALLEY_INLINE Ints dot_bytes(Ints acc, Bytes w, int32_t x) {
    acc.p[0] =
        (IntPart)_mm512_dpbusd_epi32((__m512i)acc.p[0], (__m512i)w.p[0], _mm512_set1_epi32(x));
    return acc;
}
#elif defined(__AVX2__)
constexpr int32_t kInt8Offset = 0;
GALLEY_INLINE Ints dot_bytes(Ints acc, Bytes w, int32_t x) {
    GALLEY_PARTS {
        const __m256i s = _mm256_xor_si256((__m256i)w.p[i], _mm256_set1_epi8(-128));
        const __m256i pairs =
            _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(_mm256_set1_epi32(x), s));
        acc.p[i] += (IntPart)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    return acc;
}
#else
constexpr int32_t kInt8Offset = 128;
// Products of a byte and a signed byte fit into 16 bits; they are summed in 32.
GALLEY_INLINE Ints dot_bytes(Ints acc, Bytes w, int32_t x) {
    const uint32_t u = static_cast<uint32_t>(x);
    const auto pair = [](uint32_t low, uint32_t high) {
        const auto extend = [](uint32_t v) {
            return static_cast<uint16_t>(static_cast<int8_t>(v));
        };
        return (HalvesPart)(UintPart{} + (extend(low) | static_cast<uint32_t>(extend(high)) << 16));
    };
    const HalvesPart evens = pair(u, u >> 16), odds = pair(u >> 8, u >> 24);
    GALLEY_PARTS {
        const HalvesPart halves = (HalvesPart)w.p[i];
        const IntPart even = (IntPart)((halves & 0xff) * evens),
                      odd = (IntPart)((halves >> 8) * odds);
        acc.p[i] += (even << 16 >> 16) + (even >> 16) + (odd << 16 >> 16) + (odd >> 16);
    }
    return acc;
}
#endif

// Sums of products of weights below 16 and signed bytes. Two such products are 3810 at most, so
// AVX2 adds eight times two in 16 bits and widens them once.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define GALLEY_SHORT_SUMS 1
constexpr int kShortSums = 8;
struct Shorts {
    HalvesPart p[kParts];
};
GALLEY_INLINE void dot_nibbles(Shorts& acc, Bytes w, int32_t x) {
    GALLEY_PARTS {
        acc.p[i] += (HalvesPart)_mm256_maddubs_epi16((__m256i)w.p[i], _mm256_set1_epi32(x));
        // GCC 12 adds in another order otherwise, and spills what waits for its turn.
        asm("" : "+x"(acc.p[i]));
    }
}
GALLEY_INLINE Ints widen(Ints acc, Shorts sums) {
    GALLEY_PARTS acc.p[i] += (IntPart)_mm256_madd_epi16((__m256i)sums.p[i], _mm256_set1_epi16(1));
    return acc;
}
#endif

// Byte `at` of each lane's four, signed, as a float that is kWidened times as large: it is moved to
// the lane's upper end, with zeros below. Products with floats up to 1e28 stay finite.
constexpr float kWidened = 0x1p24f;
GALLEY_INLINE Floats widen(Bytes w, int at) {
    Ints moved;
#if defined(__AVX512BW__)
    const __m512i lanes = _mm512_set4_epi32(12 << 24, 8 << 24, 4 << 24, 0);
    const __m512i from = _mm512_add_epi32(lanes, _mm512_set1_epi32(0x00808080 + (at << 24)));
    moved.p[0] = (IntPart)_mm512_shuffle_epi8((__m512i)w.p[0], from);
#elif defined(__AVX2__)
    const __m256i lanes =
        _mm256_set_epi32(12 << 24, 8 << 24, 4 << 24, 0, 12 << 24, 8 << 24, 4 << 24, 0);
    const __m256i from = _mm256_add_epi32(lanes, _mm256_set1_epi32(0x00808080 + (at << 24)));
    GALLEY_PARTS moved.p[i] = (IntPart)_mm256_shuffle_epi8((__m256i)w.p[i], from);
#else
    GALLEY_PARTS moved.p[i] = (IntPart)((w.p[i] << (24 - 8 * at)) & 0xff000000u);
#endif
    return to_floats(moved);
}

// 16 pairs of bfloat16 as floats: the first of each, and the second.
GALLEY_INLINE void widen_pairs(const uint16_t* w, Floats& first, Floats& second) {
    const Bytes both = load_parts<Bytes>(w);
    GALLEY_PARTS {
        first.p[i] = (FloatPart)(both.p[i] << 16);
        second.p[i] = (FloatPart)(both.p[i] & 0xffff0000u);
    }
}

#if defined(__AVX512BF16__)
struct Pairs {
    __m512bh v;
};
// Bytes `at` and `at + 1` of each lane's four, signed, kWidened times as large.
GALLEY_INLINE Pairs widen_pair(Bytes w, int at) {
    const __m512i first = (__m512i)widen(w, at).p[0], second = (__m512i)widen(w, at + 1).p[0];
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
GALLEY_INLINE Floats dot_pairs(Floats acc, Pairs x, Pairs w) {
    acc.p[0] = _mm512_dpbf16_ps(acc.p[0], x.v, w.v);
    return acc;
}
#else
struct Pairs {
    Floats even, odd;
};
GALLEY_INLINE Pairs widen_pair(Bytes w, int at) { return {widen(w, at), widen(w, at + 1)}; }
GALLEY_INLINE Pairs widen_small_pair(Bytes w, int at) { return widen_pair(w, at); }
// Both of a pair in each lane. AVX2's load is named, as GCC 12 takes the two apart before it else.
GALLEY_INLINE UintPart splat_both(const uint16_t* x) {
#if defined(__AVX2__)
    return (UintPart)_mm256_broadcast_ss(reinterpret_cast<const float*>(x));
#else
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
    return pair - UintPart{};
#endif
}
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
GALLEY_INLINE Floats dot_pairs(Floats acc, Pairs x, Pairs w) {
    return fma(x.odd, w.odd, fma(x.even, w.even, acc));
}
#endif

}  // namespace GALLEY_ISA
}  // namespace galley
