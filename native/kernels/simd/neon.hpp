// NEON with dot products (asimddp): Arm CPUs since Armv8.2's, four registers of four.
#pragma once

#include <arm_neon.h>

namespace galley {
namespace GALLEY_ISA {
constexpr int kWidth = 4;
}
}  // namespace galley

#include "narrow.hpp"
#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// a * b + c, rounded once.
GALLEY_INLINE Floats fma(Floats a, Floats b, Floats c) {
    Floats r;
    GALLEY_PARTS r.p[i] =
        (FloatPart)vfmaq_f32((float32x4_t)c.p[i], (float32x4_t)a.p[i], (float32x4_t)b.p[i]);
    return r;
}
GALLEY_INLINE DoublePart fma(DoublePart a, DoublePart b, DoublePart c) {
    return (DoublePart)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}

// Bit i: lane i of `a` is not at most that of `b`; so it is if either is NaN.
GALLEY_INLINE uint32_t not_at_most(Floats a, Floats b) {
    const uint32x4_t bits = {1, 2, 4, 8};
    uint32_t lanes = 0;
    GALLEY_PARTS {
        const uint32x4_t at_most = vcleq_f32((float32x4_t)a.p[i], (float32x4_t)b.p[i]);
        lanes |= vaddvq_u32(vbicq_u32(bits, at_most)) << i * kWidth;
    }
    return lanes;
}

// To the nearest, ties to even; |a| < 2^22.
GALLEY_INLINE Ints to_ints(Floats a) {
    Ints r;
    GALLEY_PARTS r.p[i] = (IntPart)vcvtnq_s32_f32((float32x4_t)a.p[i]);
    return r;
}

// Of integers that a byte holds.
GALLEY_INLINE void store_bytes(int8_t* a, Ints v) {
    int16x8_t halves[2];
    GALLEY_UNROLL for (int i = 0; i < 2; ++i) halves[i] =
        vcombine_s16(vmovn_s32((int32x4_t)v.p[2 * i]), vmovn_s32((int32x4_t)v.p[2 * i + 1]));
    vst1q_s8(a, vcombine_s8(vmovn_s16(halves[0]), vmovn_s16(halves[1])));
}
GALLEY_INLINE Ints load_int8(const int8_t* a) {
    const int8x16_t bytes = vld1q_s8(a);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {(IntPart)vmovl_s16(vget_low_s16(low)), (IntPart)vmovl_high_s16(low),
            (IntPart)vmovl_s16(vget_low_s16(high)), (IntPart)vmovl_high_s16(high)};
}
GALLEY_INLINE Ints load_uint8(const uint8_t* a) {
    const uint8x16_t bytes = vld1q_u8(a);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return {(IntPart)vmovl_u16(vget_low_u16(low)), (IntPart)vmovl_high_u16(low),
            (IntPart)vmovl_u16(vget_low_u16(high)), (IntPart)vmovl_high_u16(high)};
}
GALLEY_INLINE Floats load_bf16(const uint16_t* a) {
    Floats r;
    GALLEY_PARTS r.p[i] = (FloatPart)vshll_n_u16(vld1_u16(a + i * kWidth), 16);
    return r;
}
GALLEY_INLINE Floats load_f16(const uint16_t* a) {
    Floats r;
    GALLEY_PARTS r.p[i] = (FloatPart)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(a + i * kWidth)));
    return r;
}

// acc[lane] += sum over j < 4 of w[4 * lane + j] * x[j], both signed.
GALLEY_INLINE Ints dot_signed(Ints acc, Bytes w, int32_t x) {
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(x));
    GALLEY_PARTS acc.p[i] = (IntPart)vdotq_s32((int32x4_t)acc.p[i], (int8x16_t)w.p[i], four);
    return acc;
}

// acc[lane] += sum over j < 4 of (w[4 * lane + j] - (128 - kInt8Offset)) * x[j].
constexpr int32_t kInt8Offset = 0;
GALLEY_INLINE Ints dot_bytes(Ints acc, Bytes w, int32_t x) {
    GALLEY_PARTS w.p[i] ^= 0x80808080u;
    return dot_signed(acc, w, x);
}

constexpr bool kNarrowGains = false;  // weights below 128 are multiplied no faster

// Sums of products of weights below 16, and how many of them there is place for; 0: no end.
using NibbleSums = Ints;
constexpr int kNibbleDots = 0;
GALLEY_INLINE void dot_nibbles(NibbleSums& sums, Bytes w, int32_t x) {
    sums = dot_signed(sums, w, x);
}
GALLEY_INLINE Ints add_sums(Ints acc, NibbleSums sums) { return acc + sums; }
constexpr int kDotsInFlight = 4;  // sums of so many parts would wait for each other

// acc + products of numbers below 2^15 and of the lower 16 bits of `b`, which are signed.
GALLEY_INLINE IntPart dot_halves(IntPart acc, IntPart a, int32_t b) {
    return acc + a * int32_t{int16_t(b)};
}
GALLEY_INLINE UintPart shift_right(UintPart a, int32_t count) { return a >> count; }

// Byte `at` of each lane's four, at the lane's upper end, with zeros below.
GALLEY_INLINE Ints move_up(Bytes w, int at) {
    Ints moved;
    GALLEY_PARTS moved.p[i] = (IntPart)((w.p[i] << (24 - 8 * at)) & 0xff000000u);
    return moved;
}

// One pair of bfloat16 in each lane.
GALLEY_INLINE UintPart splat_both(const uint16_t* x) {
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
    return pair - UintPart{};
}

// Nothing to do: see that of x86_256.hpp.
GALLEY_INLINE void keep_in_registers(Floats&) {}

}  // namespace GALLEY_ISA
}  // namespace galley

#include "bf16_widened.hpp"
#include "nibbles.hpp"
#include "powers.hpp"
