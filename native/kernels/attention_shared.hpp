// Attention's products in vector registers where values are the first columns of keys.
//
// Keys lie across tokens. A few columns of a span at a time become rows of floats, one a token,
// which then meet the weights of all queries.
#pragma once

#include "attention_vector.hpp"

namespace galley {
namespace GALLEY_ISA {

// Rows that share the loads of a value, which are floats already: that leaves registers for more.
constexpr int kMixedRows = kWidth == 8 ? 6 : kRows;

template <class T>
struct SharedProducts : VectorProducts<T, sizeof(T) == 1 ? 2 : 1> {
    using Base = VectorProducts<T, sizeof(T) == 1 ? 2 : 1>;
    using Base::a, Base::cache, Base::kInt4, Base::kInt8, Base::kTogether, Base::piece_of,
        Base::rows, Base::scores, Base::shrink;
    static constexpr bool kRounds = false;

    explicit SharedProducts(const Attend& attend) : Base(attend) {}

    // Weights take the place of scores; scales are part of what the keys become.
    void put_weights(int64_t row, int64_t, int64_t c, const Floats (&p)[kTogether]) const {
        store(scores + row * kSpan + c, p[0]);
    }

    void mix_span(const Softmax& sums, int64_t span, int64_t keys) const {
        int64_t d = 0;
        for (; d + kColumns * kLanes <= cache.padded_value_dim; d += kColumns * kLanes)
            mix_columns<kColumns>(sums, d, span, keys);
        for (; d < cache.padded_value_dim; d += kLanes) mix_columns<1>(sums, d, span, keys);
    }

  private:
    // D registers of each value from `d` on.
    template <int D>
    void mix_columns(const Softmax& sums, int64_t d, int64_t span, int64_t keys) const {
        alignas(kLine) float values[kSpan * D * kLanes];
        for (int64_t at = 0; at < keys; at += kBlockTokens)
            for (int i = 0; i < D; ++i)
                turn(piece_of(span + at), d + i * kLanes, values + (at * D + i) * kLanes,
                     D * kLanes);
        for (int64_t row = 0; row < rows; row += kMixedRows)
            mix_rows<kMixedRows, D>(sums, rows - row, row, d, values, keys);
    }

    // Sixteen columns of a block, a token's to every `stride` floats. Behind the last token may be
    // anything.
    void turn(uint8_t* from, int64_t d, float* to, int64_t stride) const {
        Floats tile[kLanes];
        const int64_t count = least(kLanes, cache.value_dim - d);
        if (count == kLanes)
            GALLEY_UNROLL for (int i = 0; i < kLanes; ++i) tile[i] = column(from, d, i);
        else
            for (int i = 0; i < kLanes; ++i) tile[i] = i < count ? column(from, d, i) : splat(0.0f);
        transpose(tile);
        GALLEY_UNROLL for (int t = 0; t < kLanes; ++t) {
            if constexpr (kInt4)
                if (cache.factors)
                    tile[t] =
                        tile[t] * load_some(cache.factors + a.kv_head * cache.key_dim + d, count);
            store(to + t * stride, tile[t]);
        }
    }

    // Column d + i, of a block's sixteen tokens; d is a multiple of 16.
    __attribute__((always_inline)) Floats column(uint8_t* from, int64_t d, int i) const {
        const T* keys = reinterpret_cast<const T*>(from);
        if constexpr (kInt4) {
            const FloatsPair both = load_operands(keys + (d + i) / 2 * kBlockTokens);
            return fma(i % 2 ? both.second : both.first, load_bf16(ranges(cache, from, 0)),
                       load_bf16(ranges(cache, from, 1)));
        } else if constexpr (kInt8) {
            return load_operands(keys + (d + i) * kBlockTokens) * load(scales(cache, from, 0));
        } else {
            return load_operands(keys + (d + i) * kBlockTokens);
        }
    }

    template <int R, int D>
    void mix(const Softmax& sums, int64_t row, int64_t d, const float* values, int64_t keys) const {
        float* mixed = sums.mixed + row * sums.padded + d;
        Floats acc[R][D];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < D; ++i)
            acc[r][i] = load(mixed + r * sums.padded + i * kLanes) * splat(shrink[row + r]);
        const float* p = scores + row * kSpan;
        for (int64_t t = 0; t < keys; ++t, values += D * kLanes) {
            Floats value[D];
            GALLEY_UNROLL for (int i = 0; i < D; ++i) value[i] = load(values + i * kLanes);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Floats weight = splat(p[r * kSpan + t]);
                GALLEY_UNROLL for (int i = 0; i < D; ++i) acc[r][i] =
                    fma(weight, value[i], acc[r][i]);
            }
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < D; ++i)
            store(mixed + r * sums.padded + i * kLanes, acc[r][i]);
    }

    template <int R, int D>
    void mix_rows(const Softmax& sums, int64_t count, int64_t row, int64_t d, const float* values,
                  int64_t keys) const {
        if (count >= R)
            mix<R, D>(sums, row, d, values, keys);
        else if constexpr (R > 1)
            mix_rows<R - 1, D>(sums, count, row, d, values, keys);
    }
};

// What computes with elements T (AttentionKernels): the same for any number of rows.
template <class T>
struct InVectors {
    using Products = VectorProducts<T>;
    using Few = Products;
    using Shared = SharedProducts<T>;
    static bool few(int64_t) { return false; }
};
template <>
struct InVectors<PairBF16> {
    using Products = VectorProducts<PairBF16>;
    using Few = Products;
    using Shared = Products;  // there are none (cache_of)
    static bool few(int64_t) { return false; }
};

}  // namespace GALLEY_ISA
}  // namespace galley
