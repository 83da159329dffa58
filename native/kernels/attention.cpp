// Attention over the paged cache with a running softmax (arXiv:2205.14135).
//
// A row's keys are taken in spans of 64 from the start of its context, whatever other rows share
// the work, and a key that a row may not see changes none of its bits: so they do not depend on
// batches or chunks.
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

constexpr int64_t kSpan = 64;  // keys that share one update of the running maximum
constexpr int kQueries = kWidth == 16 ? 8 : 4;
constexpr float kLowest = -1e30f;

GALLEY_INLINE Floats load_as_floats(const float* a) { return load(a); }
GALLEY_INLINE Floats load_as_floats(const uint16_t* a) { return load_bf16(a); }
GALLEY_INLINE void store_element(float* a, float v) { *a = v; }
GALLEY_INLINE void store_element(uint16_t* a, float v) { *a = to_bf16(v); }

template <class T>
struct Worker {
    const Attend& a;
    int64_t rows;
    float* scores;  // [rows][kSpan], then probabilities
    float* mixed;   // [rows][padded_dim]
    float* totals;  // [rows][16], a sum for each lane
    float* best;    // [rows]
    float* shrink;  // [rows]

    explicit Worker(const Attend& attend) : a(attend), rows(a.tokens * a.group) {
        scores = reinterpret_cast<float*>(a.scratch);
        mixed = scores + rows * kSpan;
        totals = mixed + rows * a.cache.padded_dim;
        best = totals + rows * kLanes;
        shrink = best + rows;
        for (int64_t i = 0; i < rows * a.cache.padded_dim; ++i) mixed[i] = 0.0f;
        for (int64_t i = 0; i < rows * kLanes; ++i) totals[i] = 0.0f;
        for (int64_t i = 0; i < rows; ++i) best[i] = kLowest;
    }

    const float* query(int64_t row) const {
        return a.q + row / a.group * a.q_stride + row % a.group * a.cache.head_dim;
    }
    int64_t position(int64_t row) const { return a.first + row / a.group; }
    // Elements in front of this head's share of the block that holds key `at`.
    int64_t heads_before(int64_t at) const {
        return a.table[at / kBlockTokens] * a.cache.kv_heads + a.kv_head;
    }

    template <int R>
    void score(int64_t row, const T* keys, int64_t at, int64_t column) {
        const float* q[R];
        Floats acc[R];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) {
            q[r] = query(row + r);
            acc[r] = splat(0.0f);
        }
        for (int64_t d = 0; d < a.cache.head_dim; ++d) {
            const Floats k = load_as_floats(keys + d * kBlockTokens);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) acc[r] = fma(splat(q[r][d]), k, acc[r]);
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) store(
            scores + (row + r) * kSpan + column, masked(acc[r] * splat(a.scale), row + r, at));
    }

    Floats masked(Floats s, int64_t row, int64_t at) const {
        const int64_t to = position(row), from = a.window ? to - a.window + 1 : 0;
        if (at >= from && at + kBlockTokens - 1 <= to) return s;
        float v[kLanes];
        store(v, s);
        for (int64_t i = 0; i < kLanes; ++i)
            if (at + i < from || at + i > to) v[i] = -__builtin_inff();
        return load(v);
    }

    template <int R>
    void score_rows(int64_t count, int64_t row, const T* keys, int64_t at, int64_t column) {
        if (count >= R) return score<R>(row, keys, at, column);
        if constexpr (R > 1) score_rows<R - 1>(count, row, keys, at, column);
    }

    void soften(int64_t row, int64_t columns) {
        float* s = scores + row * kSpan;
        Floats high = load(s);
        for (int64_t c = kLanes; c < columns; c += kLanes) high = max(high, load(s + c));
        const float top = largest(high);
        const float now = top > best[row] ? top : best[row];
        const Floats fade = exp(splat(best[row] - now));
        best[row] = now;
        Floats total = load(totals + row * kLanes) * fade;
        for (int64_t c = 0; c < columns; c += kLanes) {
            const Floats p = exp(load(s + c) - splat(now));
            store(s + c, p);
            total = total + p;
        }
        store(totals + row * kLanes, total);
        shrink[row] = fade.p[0][0];
    }

    template <int R>
    void mix(int64_t row, int64_t span, int64_t keys) {
        const T* values = static_cast<const T*>(a.cache.values);
        const int64_t padded = a.cache.padded_dim;
        for (int64_t d = 0; d < padded; d += kLanes) {
            Floats acc[R];
            GALLEY_UNROLL for (int r = 0; r < R; ++r) acc[r] =
                load(mixed + (row + r) * padded + d) * splat(shrink[row + r]);
            for (int64_t at = 0; at < keys; at += kBlockTokens) {
                const T* v = values + heads_before(span + at) * kBlockTokens * padded + d;
                const int64_t end = keys - at < kBlockTokens ? keys - at : kBlockTokens;
                const float* p = scores + row * kSpan + at;
                for (int64_t j = 0; j < end; ++j) {
                    const Floats value = load_as_floats(v + j * padded);
                    GALLEY_UNROLL for (int r = 0; r < R; ++r) acc[r] =
                        fma(splat(p[r * kSpan + j]), value, acc[r]);
                }
            }
            GALLEY_UNROLL for (int r = 0; r < R; ++r) store(mixed + (row + r) * padded + d, acc[r]);
        }
    }

    template <int R>
    void mix_rows(int64_t count, int64_t row, int64_t span, int64_t keys) {
        if (count >= R) return mix<R>(row, span, keys);
        if constexpr (R > 1) mix_rows<R - 1>(count, row, span, keys);
    }

    void take_span(int64_t span, int64_t keys) {
        const T* cached = static_cast<const T*>(a.cache.keys);
        const int64_t columns = (keys + kLanes - 1) / kLanes * kLanes;
        for (int64_t c = 0; c < columns; c += kBlockTokens) {
            const T* k = cached + heads_before(span + c) * a.cache.head_dim * kBlockTokens;
            for (int64_t row = 0; row < rows; row += kQueries)
                score_rows<kQueries>(rows - row, row, k, span + c, c);
        }
        for (int64_t row = 0; row < rows; ++row) soften(row, columns);
        for (int64_t row = 0; row < rows; row += kQueries)
            mix_rows<kQueries>(rows - row, row, span, keys);
    }

    void run() {
        const int64_t last = a.first + a.tokens - 1;
        const int64_t seen = a.window && a.first >= a.window ? a.first - a.window + 1 : 0;
        for (int64_t span = seen / kSpan * kSpan; span <= last; span += kSpan)
            take_span(span, last - span + 1 < kSpan ? last - span + 1 : kSpan);
        for (int64_t row = 0; row < rows; ++row) {
            const Floats total = splat(sum(load(totals + row * kLanes)));
            float* out = a.out + row / a.group * a.out_stride + row % a.group * a.cache.head_dim;
            for (int64_t d = 0; d < a.cache.head_dim; d += kLanes)
                store_some(out + d, load(mixed + row * a.cache.padded_dim + d) / total,
                           a.cache.head_dim - d);
        }
    }
};

template <class T>
void write(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    for (int64_t h = 0; h < c.kv_heads; ++h) {
        const int64_t head = block * c.kv_heads + h;
        T* keys = static_cast<T*>(c.keys) + head * c.head_dim * kBlockTokens + slot;
        T* values = static_cast<T*>(c.values) + (head * kBlockTokens + slot) * c.padded_dim;
        for (int64_t d = 0; d < c.head_dim; ++d) {
            store_element(keys + d * kBlockTokens, k[h * c.head_dim + d]);
            store_element(values + d, v[h * c.head_dim + d]);
        }
    }
}

}  // namespace

void write_kv(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    c.bf16 ? write<uint16_t>(c, k, v, block, slot) : write<float>(c, k, v, block, slot);
}

void attend(const Attend& a) {
    if (a.cache.bf16)
        Worker<uint16_t>(a).run();
    else
        Worker<float>(a).run();
}

}  // namespace GALLEY_ISA
}  // namespace galley
