// Attention's products in vector registers.
#pragma once

#include <type_traits>

#include "attention_rows.hpp"
#include "kv_int4.hpp"

namespace galley {
namespace GALLEY_ISA {

// Rows, and registers of keys or values, that share their loads; as many sums are in flight.
constexpr int kRows = kWidth == 4 ? 2 : 4;
constexpr int kColumns = kWidth == 16 ? 4 : 1;

// `kStretches` of a key's columns have scales of their own: two where `cache.cut` is before the
// end.
template <class T, int kStretches = 1>
struct VectorProducts : AttendRows {
    using Its = Operands<T>;
    using Read = Values<T>;
    static constexpr int64_t kDepth = Its::kDepth, kRoom = Its::kRoom;
    static constexpr bool kInt8 = std::is_same_v<T, int8_t>;
    static constexpr bool kInt4 = std::is_same_v<T, PairInt4>;

    float* queries;  // for each tile of rows [key_dim / kDepth][rows of the tile][kRoom]
    // Of kInt4 alone: each query's sum, and what the lows of a span's values add to each column.
    float* sums_of_queries;  // [kStretches][rows]
    float* lows;             // [rows]

    explicit VectorProducts(const Attend& attend)
        : AttendRows(attend, attend.tokens * attend.group,
                     reinterpret_cast<float*>(attend.scratch) + room_before_scores(attend)),
          queries(reinterpret_cast<float*>(attend.scratch)),
          sums_of_queries(scores - room_of_sums(rows)),
          lows(scores - (kInt4 ? up(rows, kLanes) : 0)) {
        for (int64_t row = 0; row < rows; row += kRows) {
            const int64_t count = rows - row < kRows ? rows - row : kRows;
            for (int64_t r = 0; r < count; ++r) {
                float* to = queries + (row * depth() + r) * kRoom;
                if constexpr (kInt4)
                    pack_scaled(row + r, to, count);
                else
                    Its::pack(query(row + r), cache.key_dim, to, count);
            }
        }
    }

    int64_t depth() const { return quotient_up(cache.key_dim, kDepth); }
    // Where a stretch of a key's columns ends.
    int64_t end_of(int stretch) const {
        return stretch + 1 == kStretches ? cache.key_dim : cache.cut;
    }

    // Columns of scores that are softened together.
    static constexpr int kTogether = 1;
    // Whether the weights become bfloat16.
    static constexpr bool kRounds = Read::kDepth == 2;

    // Of all rows and the keys from `span` on.
    void score_span(int64_t span, int64_t keys) const {
        const int64_t columns = up(keys, kLanes);
        for (int64_t row = 0; row < rows; row += kRows)
            score_rows<kRows>(rows - row, row, span, columns);
    }

    // Weights take the place of scores, of which pairs of bfloat16 fill a float; those of integers
    // carry the scales.
    void put_weights(int64_t row, int64_t span, int64_t c, const Floats (&p)[kTogether]) const {
        float* s = scores + row * kSpan;
        if constexpr (kInt4) {
            uint8_t* from = piece_of(span + c);
            const Floats low = load_bf16(ranges(cache, from, 3));
            // What lies behind the last key has no weight, but might be infinite.
            Floats added = p[0] * low;
            GALLEY_PARTS added.p[i] = p[0].p[i] == FloatPart{} ? FloatPart{} : added.p[i];
            lows[row] = (c ? lows[row] : 0.0f) + sum(added);
            store(s + c, p[0] * load_bf16(ranges(cache, from, 2)));
        } else if constexpr (kInt8)
            store(s + c, p[0] * load(scales(cache, piece_of(span + c), 1)));
        else if constexpr (Read::kDepth == 2)
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
    static int64_t room_of_sums(int64_t some) {
        return kInt4 ? (kStretches + 1) * up(some, kLanes) : 0;
    }
    static int64_t room_before_scores(const Attend& attend) {
        const int64_t some = attend.tokens * attend.group;
        return some * up(attend.cache.key_dim, kLanes) + room_of_sums(some);
    }

    // A query times the factors that its keys are divided by.
    void pack_scaled(int64_t row, float* to, int64_t stride) const {
        const float* q = query(row);
        const float* factors = cache.factors ? cache.factors + a.kv_head * cache.key_dim : nullptr;
        int64_t begin = 0;
        for (int stretch = 0; stretch < kStretches; begin = end_of(stretch++)) {
            Floats total = splat(0.0f);
            for (int64_t d = begin; d < end_of(stretch); d += kLanes) {
                const int64_t left = end_of(stretch) - d;
                Floats x = load_some(q + d, left);
                if (factors) x = x * load_some(factors + d, left);
                total = total + x;
                float some[kLanes];
                store(some, x);
                Its::pack(some, least(kLanes, left), to + d / kDepth * stride * kRoom, stride);
            }
            sums_of_queries[stretch * rows + row] = sum(total);
        }
    }

    // R rows against C blocks of keys from `at` on, which are columns `column` of the span.
    template <int R, int C>
    void score(int64_t row, int64_t at, int64_t column) const {
        const T* keys[C];
        const uint8_t* next[C];
        Floats score[R][C];
        GALLEY_UNROLL for (int c = 0; c < C; ++c) {
            keys[c] = reinterpret_cast<const T*>(piece_of(at + c * kBlockTokens));
            next[c] = piece_after(at + c * kBlockTokens);
        }
        constexpr int64_t kBytes = kBlockTokens * sizeof(T);  // for each d
        const float* q = queries + row * depth() * kRoom;
        const bool first = row == 0;
        int64_t d = 0;
        GALLEY_UNROLL for (int stretch = 0; stretch < kStretches; ++stretch) {
            Floats acc[R][C];
            GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int c = 0; c < C; ++c)
                acc[r][c] = splat(0.0f);
            for (const int64_t end = quotient_up(end_of(stretch), kDepth); d < end; ++d) {
                typename Its::Lanes key[C];
                GALLEY_UNROLL for (int c = 0; c < C; ++c) {
                    if (first && d * kBytes % kLine == 0) fetch(next[c] + d * kBytes);
                    key[c] = load_operands(keys[c] + d * kBlockTokens);
                }
                GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                    const auto query = Its::spread(q + (d * R + r) * kRoom);
                    GALLEY_UNROLL for (int c = 0; c < C; ++c) acc[r][c] =
                        Its::dot(acc[r][c], query, key[c]);
                }
            }
            GALLEY_UNROLL for (int c = 0; c < C; ++c) {
                const Floats unit = unit_of_keys(at + c * kBlockTokens, stretch);
                const Floats low = low_of_keys(at + c * kBlockTokens, stretch);
                GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                    Floats part = acc[r][c] * unit;
                    if constexpr (kInt4)
                        part = fma(splat(sums_of_queries[stretch * rows + row + r]), low, part);
                    score[r][c] = stretch ? score[r][c] + part : part;
                }
            }
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int c = 0; c < C; ++c)
            store(scores + (row + r) * kSpan + column + c * kBlockTokens, score[r][c]);
    }

    Floats unit_of_keys(int64_t at, int stretch) const {
        if constexpr (kInt4)
            return splat(a.scale) * load_bf16(ranges(cache, piece_of(at), 2 * stretch));
        else if constexpr (kInt8)
            return splat(a.scale) * load(scales(cache, piece_of(at), stretch));
        return splat(a.scale);
    }
    Floats low_of_keys(int64_t at, int stretch) const {
        if constexpr (kInt4)
            return splat(a.scale) * load_bf16(ranges(cache, piece_of(at), 2 * stretch + 1));
        return splat(0.0f);
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
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < D; ++i) {
            acc[r][i] = load(mixed + r * padded + i * kLanes) * splat(shrink[row + r]);
            if constexpr (kInt4) acc[r][i] = acc[r][i] + splat(lows[row + r]);
        }
        constexpr int64_t kBytes = D * Read::kBytes;  // for each key
        const int64_t stride = padded / kLanes * Read::kBytes;
        const int64_t offset = cache.values + d / kLanes * Read::kBytes;
        const bool first = row == 0 && offset % kLine == 0;
        for (int64_t at = 0; at < keys; at += kBlockTokens) {
            const uint8_t* v = piece_of(span + at) + offset;
            const uint8_t* next = piece_after(span + at) + offset;
            const int64_t left = keys - at < kBlockTokens ? keys - at : kBlockTokens;
            const int64_t end = (left + Read::kDepth - 1) / Read::kDepth;
            const float* p = scores + row * kSpan + at / Read::kDepth;
            for (int64_t j = 0; j < end; ++j) {
                if (first)
                    for (int64_t b = 0; b < kBytes; b += kLine) fetch(next + j * stride + b);
                typename Read::Lanes value[D];
                GALLEY_UNROLL for (int i = 0; i < D; ++i) value[i] =
                    Read::read(v + j * stride + i * Read::kBytes);
                GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                    const auto weight = Read::spread(p + r * kSpan + j);
                    GALLEY_UNROLL for (int i = 0; i < D; ++i) acc[r][i] =
                        Read::dot(acc[r][i], weight, value[i]);
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

}  // namespace GALLEY_ISA
}  // namespace galley
