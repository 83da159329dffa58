// Elements of the KV cache, whatever their type.
#pragma once

#include "vec.hpp"

namespace galley {
namespace GALLEY_ISA {

struct PairBF16 {
    uint16_t first, second;
};
struct PairInt4 {
    uint8_t both;
};

GALLEY_INLINE Floats load_operands(const float* a) { return load(a); }
GALLEY_INLINE Floats load_operands(const uint16_t* a) { return load_bf16(a); }
GALLEY_INLINE Floats load_operands(const int8_t* a) { return to_floats(load_int8(a)); }
GALLEY_INLINE Pairs load_operands(const PairBF16* a) {
    return load_pairs(reinterpret_cast<const uint16_t*>(a));
}
GALLEY_INLINE FloatsPair load_operands(const PairInt4* a) { return load_nibble_pairs(&a->both); }

// What a product with 16 elements T takes: how many of a row it has at a time, and the other
// operand, which fills the room of kRoom floats. `pack` makes those of a row, `stride` apart.
template <class T>
struct Operands {
    using Lanes = Floats;
    static constexpr int64_t kDepth = 1, kRoom = 1;
    static void pack(const float* x, int64_t count, float* to, int64_t stride) {
        for (int64_t d = 0; d < count; ++d) to[d * stride] = x[d];
    }
    static Lanes spread(const float* x) { return splat(*x); }
    static Floats dot(Floats acc, Lanes x, Lanes w) { return fma(x, w, acc); }
};
template <>
struct Operands<PairBF16> {
    using Lanes = Pairs;
    static constexpr int64_t kDepth = 2, kRoom = 1;
    static void pack(const float* x, int64_t count, float* to, int64_t stride) {
        for (int64_t d = 0; d < count; d += kLanes) {
            uint16_t halves[kLanes];
            store_bf16(halves, load_some(x + d, count - d));
            const int64_t end = count - d < kLanes ? count - d : kLanes;
            for (int64_t i = 0; i < end; i += 2) memcpy(to + (d + i) / 2 * stride, halves + i, 4);
        }
    }
    static Lanes spread(const float* x) { return splat_pair(reinterpret_cast<const uint16_t*>(x)); }
    static Floats dot(Floats acc, Lanes x, Lanes w) { return dot_pairs(acc, x, w); }
};
// For keys; values are not processed in pairs (Values).
template <>
struct Operands<PairInt4> {
    using Lanes = FloatsPair;
    static constexpr int64_t kDepth = 2, kRoom = 2;
    static void pack(const float* x, int64_t count, float* to, int64_t stride) {
        for (int64_t d = 0; d < count; ++d) to[d / 2 * stride * kRoom + d % 2] = x[d];
        if (count % 2) to[count / 2 * stride * kRoom + 1] = 0.0f;
    }
    static Lanes spread(const float* x) { return {splat(x[0]), splat(x[1])}; }
    static Floats dot(Floats acc, Lanes x, Lanes w) {
        return fma(x.second, w.second, fma(x.first, w.first, acc));
    }
};

// How 16 columns of values T are read, which take kBytes; kDepth tokens together.
template <class T>
struct Values : Operands<T> {
    static constexpr int64_t kBytes = kLanes * sizeof(T);
    static typename Operands<T>::Lanes read(const uint8_t* a) {
        return load_operands(reinterpret_cast<const T*>(a));
    }
};
template <>
struct Values<PairInt4> : Operands<float> {
    static constexpr int64_t kBytes = kLanes / 2;
    static Floats read(const uint8_t* a) { return load_nibbles(a); }
};

// Calls `f` with an element of the type.
template <class F>
GALLEY_INLINE void with_element(KvType type, const F& f) {
    if (type == KvType::kInt8) return f(int8_t{});
    if (type == KvType::kInt4) return f(PairInt4{});
    if (type == KvType::kBF16) return f(uint16_t{});
    if (type == KvType::kPairs) return f(PairBF16{});
    f(float{});
}

GALLEY_INLINE uint8_t* piece(const Cache& c, int64_t block, int64_t kv_head) {
    return c.data + (block * c.kv_heads + kv_head) * c.head_bytes;
}
// Of 16 tokens each: `which` of the two.
GALLEY_INLINE float* scales(const Cache& c, uint8_t* piece, int which) {
    return reinterpret_cast<float*>(piece + c.scales) + which * kBlockTokens;
}

}  // namespace GALLEY_ISA
}  // namespace galley
