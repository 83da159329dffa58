// Sixteen floats or integers in as many registers (parts) as an instruction set needs for them, and
// what the compiler does with registers of any width. A set's own header says how wide they are
// (kWidth, in floats) before it includes this one.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/kernels.hpp"

#define GALLEY_INLINE static inline __attribute__((always_inline))
#define GALLEY_PARTS _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)
#define GALLEY_UNROLL _Pragma("GCC unroll 16")

namespace galley {
namespace GALLEY_ISA {

constexpr int kParts = kLanes / kWidth;

typedef float FloatPart __attribute__((vector_size(4 * kWidth)));
typedef double DoublePart __attribute__((vector_size(4 * kWidth)));  // half as many
typedef int32_t IntPart __attribute__((vector_size(4 * kWidth)));
typedef uint32_t UintPart __attribute__((vector_size(4 * kWidth)));
typedef uint16_t HalfPart __attribute__((vector_size(2 * kWidth)));
typedef uint16_t HalvesPart __attribute__((vector_size(4 * kWidth)));
typedef uint8_t BytesPart __attribute__((vector_size(4 * kWidth)));
typedef int8_t SignedBytePart __attribute__((vector_size(kWidth)));
typedef uint8_t BytePart __attribute__((vector_size(kWidth)));

struct Floats {
    FloatPart p[kParts];
};
struct Ints {
    IntPart p[kParts];
};
struct FloatsPair {
    Floats first, second;
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

// Bits 4 to 7 of each byte, at its lower end.
template <class Part>
GALLEY_INLINE Part upper_nibbles(Part bytes) {
    return (bytes >> 4) & 0x0f0f0f0f;
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

GALLEY_INLINE Floats to_floats(Ints a) {
    Floats r;
    GALLEY_PARTS r.p[i] = __builtin_convertvector(a.p[i], FloatPart);
    return r;
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

// 16 pairs of bfloat16 as floats: the first of each, and the second.
GALLEY_INLINE void widen_pairs(const uint16_t* w, Floats& first, Floats& second) {
    const Bytes both = load_parts<Bytes>(w);
    GALLEY_PARTS {
        first.p[i] = (FloatPart)(both.p[i] << 16);
        second.p[i] = (FloatPart)(both.p[i] & 0xffff0000u);
    }
}

}  // namespace GALLEY_ISA
}  // namespace galley
