// How a token's key or value becomes integers from 0 to 15
// (galley/ops/reference_kv.py).
#pragma once

#include "kv.hpp"

namespace galley {
namespace GALLEY_ISA {

// Integers n of a row stand for low + scale * n.
struct Range {
    float scale;  // NaN where the row is not finite
    float low;
    float inverse;  // 0: every integer is 0
};

// Towards minus infinity, or plus infinity, to a bfloat16.
GALLEY_INLINE float bf16_below(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const auto half = static_cast<uint16_t>(bits >> 16);
    return from_bf16(from_bf16(half) > x ? half + 1 : half);
}
GALLEY_INLINE float bf16_above(float x) { return -bf16_below(-x); }

// Column d of `x` over that of `factors`, if there are any; `other` from
// `count` on.
GALLEY_INLINE Floats load_over(const float* x, const float* factors, int64_t d, int64_t count,
                               float other) {
    const Floats v = load_some(x + d, count - d, other);
    return factors ? v / load_some(factors + d, count - d, 1.0f) : v;
}

// Low is at most the least and low + 15 * scale at least the greatest, so
// nothing is cut off.
GALLEY_INLINE Range range_of(const float* x, const float* factors, int64_t count) {
    Floats least = splat(__FLT_MAX__), most = splat(-__FLT_MAX__);
    uint32_t bad = 0;
    for (int64_t d = 0; d < count; d += kLanes) {
        const Floats v = load_over(x, factors, d, count, x[0] / (factors ? factors[0] : 1.0f));
        least = min(least, v);
        most = max(most, v);
        bad |= not_at_most(abs(v), splat(__FLT_MAX__));
    }
    const float low = bf16_below(-largest(splat(0.0f) - least));
    const float span = largest(most) - low;
    const Range none = {__builtin_nanf(""), 0.0f, 0.0f};
    if (bad || !(span <= 1e38f)) return none;
    // Below 1e-30 the quotient would overflow; such a row has one value for every
    // purpose.
    if (span <= 1e-30f) return {0.0f, low, 0.0f};
    const float scale = bf16_above(span / 15.0f);
    return {scale, low, 1.0f / scale};
}

GALLEY_INLINE Ints round(const Range& r, Floats x) {
    return r.inverse != 0.0f ? to_ints((x - splat(r.low)) * splat(r.inverse)) : splat_int(0);
}

// Of 16 tokens each: `which` of the four.
GALLEY_INLINE uint16_t* ranges(const Cache& c, uint8_t* piece, int which) {
    return reinterpret_cast<uint16_t*>(piece + c.scales) + which * kBlockTokens;
}

}  // namespace GALLEY_ISA
}  // namespace galley
