// Attention's products in vector registers.
#pragma once

#include "attention_rows.hpp"

namespace galley {
namespace GALLEY_ISA {

// Rows, and registers of keys or values, that share their loads; as many sums are in flight.
constexpr int kRows = kWidth == 4 ? 2 : 4;
constexpr int kColumns = kWidth == 16 ? 4 : 1;

template <class T>
struct VectorProducts : AttendRows {
    using Its = Operands<T>;
    static constexpr int64_t kDepth = Its::kDepth;

    float* queries;  // for each tile of rows [key_dim / kDepth][rows of the tile]

    explicit VectorProducts(const Attend& attend)
        : AttendRows(attend, attend.tokens * attend.group,
                     reinterpret_cast<float*>(attend.scratch) +
                         attend.tokens * attend.group * up(attend.cache.key_dim, kLanes)),
          queries(reinterpret_cast<float*>(attend.scratch)) {
        for (int64_t row = 0; row < rows; row += kRows) {
            const int64_t count = rows - row < kRows ? rows - row : kRows;
            for (int64_t r = 0; r < count; ++r)
                Its::pack(query(row + r), cache.key_dim, queries + row * depth() + r, count);
        }
    }

    int64_t depth() const { return quotient_up(cache.key_dim, kDepth); }

    // Columns of scores that are softened together.
    static constexpr int kTogether = 1;
    // Whether the weights become bfloat16.
    static constexpr bool kRounds = kDepth == 2;

    // Of all rows and the keys from `span` on.
    void score_span(int64_t span, int64_t keys) const {
        const int64_t columns = up(keys, kLanes);
        for (int64_t row = 0; row < rows; row += kRows)
            score_rows<kRows>(rows - row, row, span, columns);
    }

    // Weights take the place of scores, of which kDepth fill a float; those of int8 values carry
    // the scales.
    void put_weights(int64_t row, int64_t span, int64_t c, const Floats (&p)[kTogether]) const {
        float* s = scores + row * kSpan;
        if constexpr (sizeof(T) == 1)
            store(s + c, p[0] * load(value_scales(cache, piece_of(span + c))));
        else if constexpr (kDepth == 2)
            store_bf16(reinterpret_cast<uint16_t*>(s) + c, p[0]);
        else
            store(s + c, p[0]);
    }

    // The rows' weights times the span's values, added to what was mixed before.
    void mix_span(const Softmax& sums, int64_t span, int64_t keys) const {
        for (int64_t row = 0; row < rows; row += kRows)
            mix_rows<kRows>(sums, rows - row, row, span, keys);
    }

  private:
    // R rows against C blocks of keys from `at` on, which are columns `column` of the span.
    template <int R, int C>
    void score(int64_t row, int64_t at, int64_t column) const {
        const T* keys[C];
        const uint8_t* next[C];
        Floats acc[R][C];
        GALLEY_UNROLL for (int c = 0; c < C; ++c) {
            keys[c] = reinterpret_cast<const T*>(piece_of(at + c * kBlockTokens));
            next[c] = piece_after(at + c * kBlockTokens);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) acc[r][c] = splat(0.0f);
        }
        constexpr int64_t kBytes = kBlockTokens * sizeof(T);  // for each d
        const float* q = queries + row * depth();
        const bool first = row == 0;
        for (int64_t d = 0; d < depth(); ++d) {
            typename Its::Lanes key[C];
            GALLEY_UNROLL for (int c = 0; c < C; ++c) {
                if (first && d * kBytes % kLine == 0) fetch(next[c] + d * kBytes);
                key[c] = load_operands(keys[c] + d * kBlockTokens);
            }
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const auto query = Its::spread(q + d * R + r);
                GALLEY_UNROLL for (int c = 0; c < C; ++c) acc[r][c] =
                    Its::dot(acc[r][c], query, key[c]);
            }
        }
        GALLEY_UNROLL for (int c = 0; c < C; ++c) {
            const Floats unit = unit_of_keys(at + c * kBlockTokens);
            GALLEY_UNROLL for (int r = 0; r < R; ++r)
                store(scores + (row + r) * kSpan + column + c * kBlockTokens, acc[r][c] * unit);
        }
    }

    Floats unit_of_keys(int64_t at) const {
        if constexpr (sizeof(T) > 1) return splat(a.scale);
        return splat(a.scale) * load(key_scales(cache, piece_of(at)));
    }

    template <int R>
    void score_rows(int64_t count, int64_t row, int64_t span, int64_t columns) const {
        if (count >= R) {
            int64_t c = 0;
            for (; c + kColumns * kLanes <= columns; c += kColumns * kLanes)
                score<R, kColumns>(row, span + c, c);
            for (; c < columns; c += kLanes) score<R, 1>(row, span + c, c);
        } else if constexpr (R > 1) {
            score_rows<R - 1>(count, row, span, columns);
        }
    }

    // R rows' weights times D registers of each value from `d` on.
    template <int R, int D>
    void mix(const Softmax& sums, int64_t row, int64_t d, int64_t span, int64_t keys) const {
        const int64_t padded = cache.padded_value_dim;
        float* mixed = sums.mixed + row * padded + d;
        Floats acc[R][D];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < D; ++i)
            acc[r][i] = load(mixed + r * padded + i * kLanes) * splat(shrink[row + r]);
        constexpr int64_t kBytes = D * kLanes * sizeof(T);  // for each key
        const int64_t offset = cache.values + d * static_cast<int64_t>(sizeof(T));
        const bool first = row == 0 && offset % kLine == 0;
        for (int64_t at = 0; at < keys; at += kBlockTokens) {
            const T* v = reinterpret_cast<const T*>(piece_of(span + at) + offset);
            const uint8_t* next = piece_after(span + at) + offset;
            const int64_t left = keys - at < kBlockTokens ? keys - at : kBlockTokens;
            const int64_t end = (left + kDepth - 1) / kDepth;
            const float* p = scores + row * kSpan + at / kDepth;
            for (int64_t j = 0; j < end; ++j) {
                if (first)
                    for (int64_t b = 0; b < kBytes; b += kLine)
                        fetch(next + j * padded * static_cast<int64_t>(sizeof(T)) + b);
                typename Its::Lanes value[D];
                GALLEY_UNROLL for (int i = 0; i < D; ++i) value[i] =
                    load_operands(v + j * padded + i * kLanes);
                GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                    const auto weight = Its::spread(p + r * kSpan + j);
                    GALLEY_UNROLL for (int i = 0; i < D; ++i) acc[r][i] =
                        Its::dot(acc[r][i], weight, value[i]);
                }
            }
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < D; ++i)
            store(mixed + r * padded + i * kLanes, acc[r][i]);
    }

    template <int R>
    void mix_rows(const Softmax& sums, int64_t count, int64_t row, int64_t span,
                  int64_t keys) const {
        if (count >= R) {
            int64_t d = 0;
            for (; d + kColumns * kLanes <= cache.padded_value_dim; d += kColumns * kLanes)
                mix<R, kColumns>(sums, row, d, span, keys);
            for (; d < cache.padded_value_dim; d += kLanes) mix<R, 1>(sums, row, d, span, keys);
        } else if constexpr (R > 1) {
            mix_rows<R - 1>(sums, count, row, span, keys);
        }
    }
};

// What computes with elements T (AttentionKernels): the same for any number of rows.
template <class T>
struct InVectors {
    using Products = VectorProducts<T>;
    using Few = Products;
    static bool few(int64_t) { return false; }
};

}  // namespace GALLEY_ISA
}  // namespace galley
