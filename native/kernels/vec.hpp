// Sixteen floats or integers at a time: what kernels are written in, so that one text serves every
// instruction set. GALLEY_SIMD is the header of the set that is compiled for, of those in simd/.
//
// From there: vectors (Floats, Ints, Bytes, Pairs) of kParts registers of kWidth floats, their
// loads, stores and arithmetic, dot products of bytes (dot_bytes, dot_nibbles) and of pairs of
// bfloat16 (dot_pairs). Here: what is made of these.
#pragma once

#include GALLEY_SIMD

namespace galley {
namespace GALLEY_ISA {

GALLEY_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
GALLEY_INLINE int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
GALLEY_INLINE int64_t up(int64_t value, int64_t multiple) {
    return quotient_up(value, multiple) * multiple;
}

// Asks for a line to be brought to the second cache. Functions and lambdas that do nothing else
// must be inlined, too: GCC takes them for functions without effect, and drops their calls.
GALLEY_INLINE void fetch(const uint8_t* address) { __builtin_prefetch(address, 0, 2); }

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

// Lanes folded in one fixed order.
GALLEY_INLINE float sum(Floats a) {
    float v[kLanes];
    store(v, a);
    for (int n = kLanes / 2; n; n /= 2)
        for (int i = 0; i < n; ++i) v[i] += v[i + n];
    return v[0];
}
// Lanes `first` to `last` as they are, the others `other`.
GALLEY_INLINE Floats between(int64_t first, int64_t last, Floats a, float other) {
    float v[kLanes];
    store(v, a);
    for (int i = 0; i < kLanes; ++i) v[i] = i >= first && i <= last ? v[i] : other;
    return load(v);
}
GALLEY_INLINE int32_t sum(Ints a) {
    IntPart total = a.p[0];
    for (int i = 1; i < kParts; ++i) total += a.p[i];
    return sum_of_lanes(total);
}

// The first `count` of 16.
GALLEY_INLINE void store_some_bf16(uint16_t* a, Floats v, int64_t count) {
    if (count >= kLanes) return store_bf16(a, v);
    uint16_t padded[kLanes];
    store_bf16(padded, v);
    memcpy(a, padded, count * sizeof *a);
}
// Byte `at` of each lane's four, signed, as a float that is kWidened times as large: it is moved to
// the lane's upper end, with zeros below. Products with floats up to 1e28 stay finite.
constexpr float kWidened = 0x1p24f;
GALLEY_INLINE Floats widen(Bytes w, int at) { return to_floats(move_up(w, at)); }

GALLEY_INLINE int32_t load_four(const uint8_t* x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return four;
}

GALLEY_INLINE float load_float(const uint8_t* x) {
    float value;
    memcpy(&value, x, sizeof value);
    return value;
}

// x[begin] to x[end - 1], added in one fixed order. Not inlined: callers have no register to spare.
[[maybe_unused]] static __attribute__((noinline)) float sum_columns(const float* x, int64_t begin,
                                                                    int64_t end) {
    Floats total = splat(0.0f);
    for (int64_t k = begin; k < end; k += kLanes) total = total + load_some(x + k, end - k);
    return sum(total);
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

// cap * tanh(x / cap): the hyperbolic tangent as a quotient of exponentials, within 3e-7 * cap.
GALLEY_INLINE Floats capped(Floats x, float cap) {
    const Floats power = exp(x * splat(2.0f / cap));
    return splat(cap) - splat(2.0f * cap) / (power + splat(1.0f));
}

// 2^x for what is rounded to bfloat16 after it: relative error below 1.1e-4, exactly 1 at 0, 0 far
// below; NaN stays NaN. x at most 127.
GALLEY_INLINE Floats exp2_rough(Floats x) {
    constexpr float lowest = -126.0f;  // below, results would be denormal, which takes the CPU long
    const Floats c = max(x, splat(lowest));
    const Exponents n = nearest_exponents(c);
    const Floats r = c - to_floats(n);
    Floats p = fma(splat(5.500887e-2f), r, splat(2.4221097e-1f));
    p = fma(p, r, splat(6.9328294e-1f));
    p = fma(p, r, splat(1.0f));
    return scale_by_power(p, n, x, lowest);
}

}  // namespace GALLEY_ISA
}  // namespace galley
