// Any CPU: what the compiler makes of vectors of four floats.
#pragma once

namespace galley {
namespace GALLEY_ISA {
constexpr int kWidth = 4;
}
}  // namespace galley

#include "narrow.hpp"
#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// a * b + c, rounded once where the instruction set can.
GALLEY_INLINE Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
GALLEY_INLINE DoublePart fma(DoublePart a, DoublePart b, DoublePart c) { return a * b + c; }

// Bit i: lane i of `a` is not at most that of `b`; so it is if either is NaN.
GALLEY_INLINE uint32_t not_at_most(Floats a, Floats b) {
    uint32_t lanes = 0;
    for (int j = 0; j < kParts; ++j)
        for (int i = 0; i < kWidth; ++i)
            lanes |= static_cast<uint32_t>(!(a.p[j][i] <= b.p[j][i])) << (j * kWidth + i);
    return lanes;
}

// To the nearest, ties to even; |a| < 2^22.
GALLEY_INLINE Ints to_ints(Floats a) {
    Ints r;
    GALLEY_PARTS r.p[i] = (IntPart)(a.p[i] + 12582912.0f) - 0x4b400000;
    return r;
}

// Of integers that a byte holds.
GALLEY_INLINE void store_bytes(int8_t* a, Ints v) {
    GALLEY_PARTS {
        const SignedBytePart part = __builtin_convertvector(v.p[i], SignedBytePart);
        memcpy(a + i * kWidth, &part, sizeof part);
    }
}
template <class Narrow>
GALLEY_INLINE Ints load_narrow(const void* a) {
    Ints r;
    GALLEY_PARTS {
        Narrow part;
        memcpy(&part, static_cast<const uint8_t*>(a) + i * sizeof part, sizeof part);
        r.p[i] = __builtin_convertvector(part, IntPart);
    }
    return r;
}
GALLEY_INLINE Ints load_int8(const int8_t* a) { return load_narrow<SignedBytePart>(a); }
GALLEY_INLINE Ints load_uint8(const uint8_t* a) { return load_narrow<BytePart>(a); }
GALLEY_INLINE Floats load_bf16(const uint16_t* a) {
    Floats r;
    GALLEY_PARTS {
        HalfPart half;
        memcpy(&half, a + i * kWidth, sizeof half);
        r.p[i] = (FloatPart)(__builtin_convertvector(half, UintPart) << 16);
    }
    return r;
}
GALLEY_INLINE Floats load_f16(const uint16_t* a) {
    float v[kLanes];
    for (int i = 0; i < kLanes; ++i) v[i] = from_f16(a[i]);
    return load(v);
}

// acc[lane] += sum over j < 4 of w[4 * lane + j] * x[j], w unsigned, x signed. Products of a byte
// and a signed byte fit into 16 bits; they are summed in 32.
GALLEY_INLINE Ints dot_unsigned(Ints acc, Bytes w, int32_t x) {
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
constexpr int kDotsInFlight = 0;  // sums of so many parts do not wait for each other

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
#include "int8_unsigned.hpp"
#include "nibbles.hpp"
#include "powers.hpp"
