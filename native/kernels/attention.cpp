// Attention over the paged cache with a running softmax (arXiv:2205.14135).
//
// A row's keys are taken in chunks of 512 from the start of its context, each with a softmax of its
// own in spans of 64, and the chunks' results are merged in order. That holds whatever other rows
// share the work and whichever threads do it, and a key that a row may not see changes none of its
// bits: so they do not depend on batches, chunked prompts or threads.
#include "kv.hpp"
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// Rows, and registers of keys or values, that share their loads; as many sums are in flight.
constexpr int kRows = kWidth == 4 ? 2 : 4;
constexpr int kColumns = kWidth == 16 ? 4 : 1;
constexpr float kLowest = -1e30f;
constexpr int64_t kLine = 64;  // bytes

GALLEY_INLINE void prefetch(const uint8_t* address) { __builtin_prefetch(address, 0, 2); }

// A softmax over some of the keys, not yet divided by its total.
struct Softmax {
    int64_t rows, padded;
    float* mixed;   // [rows][padded]
    float* totals;  // [rows][16], a sum for each lane
    float* best;    // [rows]

    Softmax(int64_t r, int64_t p, float* memory)
        : rows(r), padded(p), mixed(memory), totals(mixed + r * p), best(totals + r * kLanes) {}

    void clear() const {
        for (int64_t i = 0; i < rows * (padded + kLanes); ++i) mixed[i] = 0.0f;
        for (int64_t i = 0; i < rows; ++i) best[i] = kLowest;
    }

    // Both shares of a row scaled to their common maximum and added.
    void merge(const Softmax& other) const {
        for (int64_t row = 0; row < rows; ++row) {
            const float now = other.best[row] > best[row] ? other.best[row] : best[row];
            const Floats mine = exp(splat(best[row] - now));
            const Floats its = exp(splat(other.best[row] - now));
            best[row] = now;
            add(totals + row * kLanes, mine, other.totals + row * kLanes, its);
            for (int64_t d = row * padded; d < (row + 1) * padded; d += kLanes)
                add(mixed + d, mine, other.mixed + d, its);
        }
    }

    static void add(float* a, Floats mine, const float* b, Floats its) {
        store(a, fma(load(b), its, load(a) * mine));
    }
};

template <class T>
struct Worker {
    using Its = Operands<T>;
    static constexpr int64_t kDepth = Its::kDepth;

    const Attend& a;
    const Cache& cache;
    const int64_t rows, last;  // position of the last key
    int64_t* positions;        // [rows], of the last key that each may see
    float* queries;            // for each tile of rows [head_dim / kDepth][rows of the tile]
    float* scores;  // [rows][kSpan], then weights [rows][kSpan], of which kDepth fill a float
    float* shrink;  // [rows]
    float* rest;    // of the scratch memory

    explicit Worker(const Attend& attend)
        : a(attend),
          cache(a.cache),
          rows(a.tokens * a.group),
          last((a.keys ? a.keys : a.first + a.tokens) - 1),
          positions(reinterpret_cast<int64_t*>(a.scratch)),
          queries(reinterpret_cast<float*>(positions + rows)),
          scores(queries + rows * cache.padded_dim),
          shrink(scores + rows * kSpan),
          rest(shrink + rows) {
        for (int64_t row = 0; row < rows; row += kRows) {
            const int64_t count = rows - row < kRows ? rows - row : kRows;
            for (int64_t r = 0; r < count; ++r) pack_query(row + r, r, count);
        }
    }

    void pack_query(int64_t row, int64_t r, int64_t count) const {
        positions[row] = a.keys ? last : a.first + row / a.group;
        const float* q = a.q + row / a.group * a.q_stride + row % a.group * cache.head_dim;
        Its::pack(q, cache.head_dim, queries + (row - r) * depth() + r, count);
    }

    int64_t depth() const { return (cache.head_dim + kDepth - 1) / kDepth; }

    // Where the keys begin that any of the rows may see.
    int64_t first_span() const {
        return a.window && a.first >= a.window ? (a.first - a.window + 1) / kSpan * kSpan : 0;
    }

    uint8_t* piece_of(int64_t key) const {
        return piece(cache, a.table[key / kBlockTokens], a.kv_head);
    }

    // What will be read two spans after `key` is: beyond the last, the next KV head's first.
    const uint8_t* piece_after(int64_t key) const {
        const int64_t next = key + 2 * kSpan;
        if (next <= last) return piece_of(next);
        const int64_t from = first_span() + (key - first_span()) % (2 * kSpan);
        return piece_of(from <= last ? from : last) + cache.head_bytes;
    }

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
        const bool fetch = row == 0;
        for (int64_t d = 0; d < depth(); ++d) {
            typename Its::Lanes key[C];
            GALLEY_UNROLL for (int c = 0; c < C; ++c) {
                if (fetch && d * kBytes % kLine == 0) prefetch(next[c] + d * kBytes);
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

    // Scores of the keys that a row may not see become -inf.
    void mask(int64_t row, int64_t span, int64_t columns) const {
        const int64_t to = positions[row] - span;
        const int64_t from = a.window ? to - a.window + 1 : 0;
        if (from <= 0 && to >= columns - 1) return;
        for (int64_t c = 0; c < columns; c += kLanes) {
            float* s = scores + row * kSpan + c;
            store(s, between(from - c, to - c, load(s), -__builtin_inff()));
        }
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

    // Scores become weights, relative to the greatest score so far; of int8 values they carry the
    // scales.
    void soften(const Softmax& sums, int64_t row, int64_t span, int64_t columns) const {
        float* s = scores + row * kSpan;
        Floats high = load(s);
        for (int64_t c = kLanes; c < columns; c += kLanes) high = max(high, load(s + c));
        float& best = sums.best[row];
        Floats total = load(sums.totals + row * kLanes);
        shrink[row] = 1.0f;
        if (not_at_most(high, splat(best))) {  // seldom, after the first spans
            const float top = largest(high);
            const float now = top > best ? top : best;
            const Floats fade = exp(splat(best - now));
            best = now;
            total = total * fade;
            shrink[row] = fade.p[0][0];
        }
        for (int64_t c = 0; c < columns; c += kLanes) {
            const Floats p = weight_of(load(s + c), best);
            total = total + p;
            if constexpr (sizeof(T) == 1)
                store(s + c, p * load(value_scales(cache, piece_of(span + c))));
            else if constexpr (kDepth == 2)
                store_bf16(reinterpret_cast<uint16_t*>(s) + c, p);
            else
                store(s + c, p);
        }
        store(sums.totals + row * kLanes, total);
    }

    GALLEY_INLINE Floats weight_of(Floats score, float best) {
        if constexpr (kDepth == 1) return exp(score - splat(best));
        constexpr float kLog2E = 1.44269504f;
        return exp2_rough((score - splat(best)) * splat(kLog2E));
    }

    // R rows' weights times D registers of each value from `d` on.
    template <int R, int D>
    void mix(const Softmax& sums, int64_t row, int64_t d, int64_t span, int64_t keys) const {
        const int64_t padded = cache.padded_dim;
        float* mixed = sums.mixed + row * padded + d;
        Floats acc[R][D];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < D; ++i)
            acc[r][i] = load(mixed + r * padded + i * kLanes) * splat(shrink[row + r]);
        constexpr int64_t kBytes = D * kLanes * sizeof(T);  // for each key
        const int64_t offset = cache.values + d * static_cast<int64_t>(sizeof(T));
        const bool fetch = row == 0 && offset % kLine == 0;
        for (int64_t at = 0; at < keys; at += kBlockTokens) {
            const T* v = reinterpret_cast<const T*>(piece_of(span + at) + offset);
            const uint8_t* next = piece_after(span + at) + offset;
            const int64_t left = keys - at < kBlockTokens ? keys - at : kBlockTokens;
            const int64_t end = (left + kDepth - 1) / kDepth;
            const float* p = scores + row * kSpan + at / kDepth;
            for (int64_t j = 0; j < end; ++j) {
                if (fetch)
                    for (int64_t b = 0; b < kBytes; b += kLine)
                        prefetch(next + j * padded * static_cast<int64_t>(sizeof(T)) + b);
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
            for (; d + kColumns * kLanes <= cache.padded_dim; d += kColumns * kLanes)
                mix<R, kColumns>(sums, row, d, span, keys);
            for (; d < cache.padded_dim; d += kLanes) mix<R, 1>(sums, row, d, span, keys);
        } else if constexpr (R > 1) {
            mix_rows<R - 1>(sums, count, row, span, keys);
        }
    }

    // How many columns of scores there are now, those of padding included.
    int64_t score_span(int64_t span, int64_t keys) const {
        const int64_t columns = (keys + kLanes - 1) / kLanes * kLanes;
        for (int64_t row = 0; row < rows; row += kRows)
            score_rows<kRows>(rows - row, row, span, columns);
        return columns;
    }

    void take_span(const Softmax& sums, int64_t span, int64_t keys) const {
        const int64_t columns = score_span(span, keys);
        for (int64_t row = 0; row < rows; ++row) {
            mask(row, span, columns);
            soften(sums, row, span, columns);
        }
        for (int64_t row = 0; row < rows; row += kRows)
            mix_rows<kRows>(sums, rows - row, row, span, keys);
    }

    void take_chunk(int64_t chunk, const Softmax& sums) const {
        sums.clear();
        const int64_t begin = chunk * kChunk,
                      end = begin + kChunk <= last ? begin + kChunk : last + 1;
        const int64_t seen = first_span();
        for (int64_t span = begin < seen ? seen : begin; span < end; span += kSpan)
            take_span(sums, span, end - span < kSpan ? end - span : kSpan);
    }

    Softmax take_all() const {
        const Softmax sums(rows, cache.padded_dim, rest);
        const Softmax part(rows, cache.padded_dim, rest + partial_floats(rows, cache.padded_dim));
        int64_t chunk = first_chunk(a.first, a.window);
        take_chunk(chunk, sums);
        while (++chunk <= last_chunk(last)) {
            take_chunk(chunk, part);
            sums.merge(part);
        }
        return sums;
    }

    // A softmax over all keys at once: its weights are wanted, so they have a place anyway.
    void weigh() const {
        float* best = rest;
        for (int64_t row = 0; row < rows; ++row) best[row] = kLowest;
        for (int64_t span = 0; span < a.keys; span += kSpan) {
            const int64_t keys = a.keys - span < kSpan ? a.keys - span : kSpan;
            const int64_t columns = score_span(span, keys);
            for (int64_t row = 0; row < rows; ++row) {
                mask(row, span, columns);
                const float* s = scores + row * kSpan;
                float* out = a.out + row * a.out_stride + span;
                for (int64_t c = 0; c < columns; c += kLanes) {
                    const float top = largest(load(s + c));
                    best[row] = top > best[row] ? top : best[row];
                    store_some(out + c, load(s + c), keys - c);
                }
            }
        }
        for (int64_t row = 0; row < rows; ++row)
            normalise(a.out + row * a.out_stride, a.keys, best[row]);
    }

    static void normalise(float* weights, int64_t count, float best) {
        Floats total = splat(0.0f);
        for (int64_t i = 0; i < count; i += kLanes) {
            store_some(weights + i, exp(load_some(weights + i, count - i) - splat(best)),
                       count - i);
            total = total + load_some(weights + i, count - i);
        }
        const Floats share = splat(1.0f / sum(total));
        for (int64_t i = 0; i < count; i += kLanes)
            store_some(weights + i, load_some(weights + i, count - i) * share, count - i);
    }
};

void finish(const Attend& a, const Softmax& s) {
    for (int64_t row = 0; row < s.rows; ++row) {
        const Floats total = splat(sum(load(s.totals + row * kLanes)));
        float* out = a.out + row / a.group * a.out_stride + row % a.group * a.cache.head_dim;
        for (int64_t d = 0; d < a.cache.head_dim; d += kLanes)
            store_some(out + d, load(s.mixed + row * s.padded + d) / total, a.cache.head_dim - d);
    }
}

}  // namespace

void attend(const Attend& a) {
    with_element(a.cache.type, [&](auto e) { finish(a, Worker<decltype(e)>(a).take_all()); });
}

void attend_chunk(const Attend& a, int64_t chunk, float* partial) {
    const Softmax sums(a.tokens * a.group, a.cache.padded_dim, partial);
    with_element(a.cache.type, [&](auto e) { Worker<decltype(e)>(a).take_chunk(chunk, sums); });
}

void merge_chunks(const Attend& a, float* partials, int64_t count) {
    const int64_t rows = a.tokens * a.group, padded = a.cache.padded_dim;
    const int64_t floats = partial_floats(rows, padded);
    const Softmax sums(rows, padded, partials);
    for (int64_t i = 1; i < count; ++i) sums.merge(Softmax(rows, padded, partials + i * floats));
    finish(a, sums);
}

void weigh(const Attend& a) {
    with_element(a.cache.type, [&](auto e) { Worker<decltype(e)>(a).weigh(); });
}

}  // namespace GALLEY_ISA
}  // namespace galley
