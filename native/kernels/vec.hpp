// Sixteen floats or integers in as many registers as the instruction set needs for them.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../kernels.hpp"

#if defined(__AVX512F__)
#define GALLEY_WIDTH 16
#elif defined(__AVX2__)
#define GALLEY_WIDTH 8
#else
#define GALLEY_WIDTH 4
#endif

#define GALLEY_INLINE static inline __attribute__((always_inline))
#define GALLEY_PARTS _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)
#define GALLEY_UNROLL _Pragma("GCC unroll 16")

namespace galley {
namespace GALLEY_ISA {

constexpr int kWidth = GALLEY_WIDTH;
constexpr int kParts = kLanes / kWidth;

typedef float FloatPart __attribute__((vector_size(4 * GALLEY_WIDTH)));
typedef int32_t IntPart __attribute__((vector_size(4 * GALLEY_WIDTH)));
typedef uint32_t UintPart __attribute__((vector_size(4 * GALLEY_WIDTH)));
typedef uint16_t HalfPart __attribute__((vector_size(2 * GALLEY_WIDTH)));
typedef uint16_t HalvesPart __attribute__((vector_size(4 * GALLEY_WIDTH)));
typedef uint8_t BytesPart __attribute__((vector_size(4 * GALLEY_WIDTH)));
typedef int8_t SignedBytePart __attribute__((vector_size(GALLEY_WIDTH)));
typedef uint8_t BytePart __attribute__((vector_size(GALLEY_WIDTH)));

GALLEY_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
GALLEY_INLINE int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
GALLEY_INLINE int64_t up(int64_t value, int64_t multiple) {
    return quotient_up(value, multiple) * multiple;
}

// Asks for a line to be brought to the second cache. Functions and lambdas that do nothing else
// must be inlined, too: GCC takes them for functions without effect, and drops their calls.
GALLEY_INLINE void fetch(const uint8_t* address) { __builtin_prefetch(address, 0, 2); }

struct Floats {
    FloatPart p[kParts];
};
struct Ints {
    IntPart p[kParts];
};
struct Bytes {  // 64 of them
    UintPart p[kParts];
};

// Part by part: GCC copies more than a register's bytes in small pieces, through memory.
template <class Parts>
GALLEY_INLINE Parts load_parts(const void* a) {
    Parts r;
    GALLEY_PARTS memcpy(&r.p[i], static_cast<const uint8_t*>(a) + i * sizeof r.p[i], sizeof r.p[i]);
    return r;
}
GALLEY_INLINE Floats load(const float* a) { return load_parts<Floats>(a); }
GALLEY_INLINE Bytes load_bytes(const uint8_t* a) { return load_parts<Bytes>(a); }
GALLEY_INLINE void store(float* a, Floats v) {
    GALLEY_PARTS memcpy(a + i * kWidth, &v.p[i], sizeof v.p[i]);
}
GALLEY_INLINE Floats splat(float a) {
    Floats r;
    GALLEY_PARTS r.p[i] = a - FloatPart{};
    return r;
}
GALLEY_INLINE Ints splat_int(int32_t a) {
    Ints r;
    GALLEY_PARTS r.p[i] = a - IntPart{};
    return r;
}
// The first `count` of 16, `other` behind.
GALLEY_INLINE Floats load_some(const float* a, int64_t count, float other = 0.0f) {
    if (count >= kLanes) return load(a);
    float padded[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) padded[i] = i < count ? a[i] : other;
    return load(padded);
}
GALLEY_INLINE void store_some(float* a, Floats v, int64_t count) {
    if (count >= kLanes) return store(a, v);
    float padded[kLanes];
    store(padded, v);
    for (int64_t i = 0; i < count; ++i) a[i] = padded[i];
}

#define GALLEY_OPERATOR(op)                                \
    GALLEY_INLINE Floats operator op(Floats a, Floats b) { \
        Floats r;                                          \
        GALLEY_PARTS r.p[i] = a.p[i] op b.p[i];            \
        return r;                                          \
    }
GALLEY_OPERATOR(+)
GALLEY_OPERATOR(-)
GALLEY_OPERATOR(*)
GALLEY_OPERATOR(/)
#undef GALLEY_OPERATOR

GALLEY_INLINE Ints operator+(Ints a, Ints b) {
    Ints r;
    GALLEY_PARTS r.p[i] = a.p[i] + b.p[i];
    return r;
}
GALLEY_INLINE Ints operator-(Ints a, Ints b) {
    Ints r;
    GALLEY_PARTS r.p[i] = a.p[i] - b.p[i];
    return r;
}
GALLEY_INLINE Ints operator*(Ints a, Ints b) {
    Ints r;
    GALLEY_PARTS r.p[i] = a.p[i] * b.p[i];
    return r;
}

GALLEY_INLINE Bytes operator-(Bytes a, Bytes b) {
    Bytes r;
    GALLEY_PARTS r.p[i] = (UintPart)((BytesPart)a.p[i] - (BytesPart)b.p[i]);
    return r;
}

// a * b + c, rounded once where the instruction set can.
GALLEY_INLINE Floats fma(Floats a, Floats b, Floats c) {
    Floats r;
#if defined(__AVX512F__)
    r.p[0] = _mm512_fmadd_ps(a.p[0], b.p[0], c.p[0]);
#elif defined(__AVX2__)
    GALLEY_PARTS r.p[i] = _mm256_fmadd_ps(a.p[i], b.p[i], c.p[i]);
#else
    GALLEY_PARTS r.p[i] = a.p[i] * b.p[i] + c.p[i];
#endif
    return r;
}

// Comparisons keep NaN in `a`.
GALLEY_INLINE Floats max(Floats a, Floats b) {
    Floats r;
    GALLEY_PARTS r.p[i] = a.p[i] < b.p[i] ? b.p[i] : a.p[i];
    return r;
}
GALLEY_INLINE Floats min(Floats a, Floats b) {
    Floats r;
    GALLEY_PARTS r.p[i] = a.p[i] > b.p[i] ? b.p[i] : a.p[i];
    return r;
}
GALLEY_INLINE Floats abs(Floats a) {
    Floats r;
    GALLEY_PARTS r.p[i] = (FloatPart)((IntPart)a.p[i] & 0x7fffffff);
    return r;
}

// Bit i: lane i of `a` is not at most that of `b`; so it is if either is NaN.
GALLEY_INLINE uint32_t not_at_most(Floats a, Floats b) {
    uint32_t lanes = 0;
#if defined(__AVX512F__)
    lanes = _mm512_cmp_ps_mask(a.p[0], b.p[0], _CMP_NLE_UQ);
#elif defined(__AVX2__)
    GALLEY_PARTS {
        const uint32_t part = _mm256_movemask_ps(_mm256_cmp_ps(a.p[i], b.p[i], _CMP_NLE_UQ));
        lanes |= part << i * kWidth;
    }
#else
    for (int j = 0; j < kParts; ++j)
        for (int i = 0; i < kWidth; ++i)
            lanes |= static_cast<uint32_t>(!(a.p[j][i] <= b.p[j][i])) << (j * kWidth + i);
#endif
    return lanes;
}

// Lanes folded in one fixed order.
GALLEY_INLINE float sum(Floats a) {
    float v[kLanes];
    store(v, a);
    for (int n = kLanes / 2; n; n /= 2)
        for (int i = 0; i < n; ++i) v[i] += v[i + n];
    return v[0];
}
GALLEY_INLINE float largest(Floats a) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(a.p[0]);
#else
    float v[kLanes];
    store(v, a);
    for (int n = kLanes / 2; n; n /= 2)
        for (int i = 0; i < n; ++i) v[i] = v[i] < v[i + n] ? v[i + n] : v[i];
    return v[0];
#endif
}
// Lanes `first` to `last` as they are, the others `other`.
GALLEY_INLINE Floats between(int64_t first, int64_t last, Floats a, float other) {
    float v[kLanes];
    store(v, a);
    for (int i = 0; i < kLanes; ++i) v[i] = i >= first && i <= last ? v[i] : other;
    return load(v);
}
GALLEY_INLINE int32_t sum(Ints a) {
    int32_t total = 0;
    for (int j = 0; j < kParts; ++j)
        for (int i = 0; i < kWidth; ++i) total += a.p[j][i];
    return total;
}

GALLEY_INLINE Floats to_floats(Ints a) {
    Floats r;
    GALLEY_PARTS r.p[i] = __builtin_convertvector(a.p[i], FloatPart);
    return r;
}
// To the nearest, ties to even; |a| < 2^22.
GALLEY_INLINE Ints to_ints(Floats a) {
    Ints r;
#if defined(__AVX512F__)
    r.p[0] = (IntPart)_mm512_cvtps_epi32(a.p[0]);
#elif defined(__AVX2__)
    GALLEY_PARTS r.p[i] = (IntPart)_mm256_cvtps_epi32(a.p[i]);
#else
    GALLEY_PARTS r.p[i] = (IntPart)(a.p[i] + 12582912.0f) - 0x4b400000;
#endif
    return r;
}

// Between narrow elements and wide ones: where there is an instruction for it GCC 12 takes several.
// Of integers that a byte holds.
GALLEY_INLINE void store_bytes(int8_t* a, Ints v) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a), _mm512_cvtepi32_epi8((__m512i)v.p[0]));
#elif defined(__AVX2__)
    const __m256i halves = _mm256_permute4x64_epi64(
        _mm256_packs_epi32((__m256i)v.p[0], (__m256i)v.p[1]), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(a),
        _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#else
    GALLEY_PARTS {
        const SignedBytePart part = __builtin_convertvector(v.p[i], SignedBytePart);
        memcpy(a + i * kWidth, &part, sizeof part);
    }
#endif
}
GALLEY_INLINE Floats load_int8(const int8_t* a) {
    Ints r;
#if defined(__AVX512F__)
    r.p[0] = (IntPart)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
#elif defined(__AVX2__)
    GALLEY_PARTS r.p[i] = (IntPart)_mm256_cvtepi8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a + i * kWidth)));
#else
    GALLEY_PARTS {
        SignedBytePart part;
        memcpy(&part, a + i * kWidth, sizeof part);
        r.p[i] = __builtin_convertvector(part, IntPart);
    }
#endif
    return to_floats(r);
}
GALLEY_INLINE Floats load_bf16(const uint16_t* a) {
    Floats r;
#if defined(__AVX512F__)
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
    r.p[0] = (FloatPart)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#elif defined(__AVX2__)
    GALLEY_PARTS {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i * kWidth));
        r.p[i] = (FloatPart)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
    }
#else
    GALLEY_PARTS {
        HalfPart half;
        memcpy(&half, a + i * kWidth, sizeof half);
        r.p[i] = (FloatPart)(__builtin_convertvector(half, UintPart) << 16);
    }
#endif
    return r;
}
// To the nearest, ties to even; NaN stays NaN. Numbers below 2^-126 may become 0.
GALLEY_INLINE void store_bf16(uint16_t* a, Floats v) {
#if defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh(v.p[0]);
    memcpy(a, &halves, sizeof halves);
#else
    GALLEY_PARTS {
        UintPart bits = (UintPart)v.p[i];
        UintPart rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        rounded = v.p[i] == v.p[i] ? rounded : (UintPart{} + 0x7fc0);
        HalfPart half = __builtin_convertvector(rounded, HalfPart);
        memcpy(a + i * kWidth, &half, sizeof half);
    }
#endif
}
// The first `count` of 16.
GALLEY_INLINE void store_some_bf16(uint16_t* a, Floats v, int64_t count) {
    if (count >= kLanes) return store_bf16(a, v);
    uint16_t padded[kLanes];
    store_bf16(padded, v);
    memcpy(a, padded, count * sizeof *a);
}
GALLEY_INLINE uint16_t to_bf16(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (v != v) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
GALLEY_INLINE float from_bf16(uint16_t v) {
    uint32_t bits = static_cast<uint32_t>(v) << 16;
    float r;
    memcpy(&r, &bits, sizeof r);
    return r;
}
GALLEY_INLINE float from_f16(uint16_t v) {
    // Shift exponent and mantissa into place, then multiply the bias away; exact for subnormals
    // too.
    uint32_t bits = static_cast<uint32_t>(v & 0x7fff) << 13;
    float r;
    memcpy(&r, &bits, sizeof r);
    r *= 0x1p112f;
    if ((v & 0x7c00) == 0x7c00) r = (v & 0x3ff) ? __builtin_nanf("") : __builtin_inff();
    return v & 0x8000 ? -r : r;
}
GALLEY_INLINE Floats load_f16(const uint16_t* a) {
    Floats r;
#if defined(__AVX512F__)
    r.p[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)));
#elif defined(__AVX2__)
    GALLEY_PARTS r.p[i] =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i * kWidth)));
#else
    float v[kLanes];
    for (int i = 0; i < kLanes; ++i) v[i] = from_f16(a[i]);
    r = load(v);
#endif
    return r;
}

// Relative error below 2e-7; exactly 1 at 0 and 0 below -87; NaN stays NaN.
GALLEY_INLINE Floats exp(Floats x) {
    const Floats low = splat(-87.0f);
    Floats c = max(min(x, splat(88.0f)), low);
    Ints n = to_ints(c * splat(1.44269504f));
    Floats f = to_floats(n);
    Floats r = fma(f, splat(-0.693359375f), c);
    r = fma(f, splat(2.12194440e-4f), r);
    Floats p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    Floats y = fma(p, r * r, r) + splat(1.0f);
    Floats result;
    GALLEY_PARTS {
        FloatPart power = (FloatPart)((n.p[i] + 127) << 23);
        result.p[i] = x.p[i] < low.p[i] ? FloatPart{} : y.p[i] * power;
    }
    return result;
}

// 2^x for what is rounded to bfloat16 after it: relative error below 1.1e-4, exactly 1 at 0, 0 far
// below; NaN stays NaN. x at most 127.
GALLEY_INLINE Floats exp2_rough(Floats x) {
    constexpr float lowest = -126.0f;  // below, results would be denormal, which takes the CPU long
    const Floats c = max(x, splat(lowest));
#if defined(__AVX512F__)
    const Floats n = {(FloatPart)_mm512_roundscale_ps(c.p[0], 0)};
#else
    const Ints whole = to_ints(c);
    const Floats n = to_floats(whole);
#endif
    const Floats r = c - n;
    Floats p = fma(splat(5.500887e-2f), r, splat(2.4221097e-1f));
    p = fma(p, r, splat(6.9328294e-1f));
    p = fma(p, r, splat(1.0f));
#if defined(__AVX512F__)
    const __mmask16 some = _mm512_cmp_ps_mask(x.p[0], splat(lowest).p[0], _CMP_NLT_UQ);
    return {(FloatPart)_mm512_maskz_scalef_ps(some, p.p[0], n.p[0])};
#else
    Floats result;
    GALLEY_PARTS {
        const FloatPart scaled = (FloatPart)((IntPart)p.p[i] + (whole.p[i] << 23));
        result.p[i] = x.p[i] < lowest ? FloatPart{} : scaled;
    }
    return result;
#endif
}

}  // namespace GALLEY_ISA
}  // namespace galley
