// Attention over the paged cache with a running softmax (arXiv:2205.14135).
//
// A row's keys are taken in chunks of 512 from the start of its context, each with a softmax of its
// own in spans of 64, and the chunks' results are merged in order. That holds whatever other rows
// share the work and whichever threads do it, and a key that a row may not see changes none of its
// bits: so they do not depend on batches, chunked prompts or threads.
#pragma once

#include "attention_shared.hpp"

namespace galley {
namespace GALLEY_ISA {

template <class T, class Products>
struct Worker : Products {
    using Products::a, Products::cache, Products::last, Products::positions, Products::rest,
        Products::rows, Products::scores, Products::shrink;

    explicit Worker(const Attend& attend) : Products(attend) {}

    // Scores of the keys that a row may not see become -inf.
    void mask(int64_t row, int64_t span, int64_t columns) const {
        const int64_t at = positions[row] - span, to = at < last - span ? at : last - span;
        const int64_t from = first_key(a.reach, positions[row]) - span;
        if (from <= 0 && to >= columns - 1) return;
        for (int64_t c = 0; c < columns; c += kLanes) {
            float* s = scores + row * kSpan + c;
            store(s, between(from - c, to - c, load(s), -__builtin_inff()));
        }
    }

    void cap(int64_t row, int64_t columns) const {
        if (a.cap == 0.0f) return;
        for (int64_t c = 0; c < columns; c += kLanes) {
            float* s = scores + row * kSpan + c;
            store(s, capped(load(s), a.cap));
        }
    }

    // Scores become weights, relative to the greatest score so far.
    void soften(const Softmax& sums, int64_t row, int64_t span, int64_t columns) const {
        const float* s = scores + row * kSpan;
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
        constexpr int kTogether = Products::kTogether;
        for (int64_t c = 0; c < columns; c += kTogether * kLanes) {
            Floats p[kTogether];
            GALLEY_UNROLL for (int i = 0; i < kTogether; ++i) {
                p[i] = weight_of(load(s + c + i * kLanes), best);
                total = total + p[i];
            }
            this->put_weights(row, span, c, p);
        }
        store(sums.totals + row * kLanes, total);
    }

    GALLEY_INLINE Floats weight_of(Floats score, float best) {
        if constexpr (!Products::kRounds) return exp(score - splat(best));
        constexpr float kLog2E = 1.44269504f;
        return exp2_rough((score - splat(best)) * splat(kLog2E));
    }

    // How many columns of scores there are now, those of padding included.
    int64_t score_span(int64_t span, int64_t keys) const {
        Products::score_span(span, keys);
        return up(keys, Products::kTogether * kLanes);
    }

    void take_span(const Softmax& sums, int64_t span, int64_t keys) const {
        const int64_t columns = score_span(span, keys);
        for (int64_t row = 0; row < rows; ++row) {
            cap(row, columns);
            mask(row, span, columns);
            soften(sums, row, span, columns);
        }
        this->mix_span(sums, span, keys);
    }

    void take_chunk(int64_t chunk, const Softmax& sums) const {
        sums.clear();
        const int64_t begin = chunk * kChunk,
                      end = begin + kChunk <= last ? begin + kChunk : last + 1;
        const int64_t seen = this->first_span();
        for (int64_t span = begin < seen ? seen : begin; span < end; span += kSpan)
            take_span(sums, span, end - span < kSpan ? end - span : kSpan);
    }

    Softmax take_all() const {
        const Softmax sums(rows, cache.padded_value_dim, rest);
        const Softmax part(rows, cache.padded_value_dim,
                           rest + partial_floats(rows, cache.padded_value_dim));
        int64_t chunk = first_chunk(a.reach, a.first + a.after);
        take_chunk(chunk, sums);
        while (++chunk <= last_chunk(last)) {
            take_chunk(chunk, part);
            sums.merge(part);
        }
        return sums;
    }

    // A softmax over all keys at once: its weights are wanted, so they have a place anyway.
    void all_weights() const {
        float* best = rest;
        for (int64_t row = 0; row < rows; ++row) best[row] = kLowest;
        for (int64_t span = 0; span < a.keys; span += kSpan) {
            const int64_t keys = a.keys - span < kSpan ? a.keys - span : kSpan;
            const int64_t columns = score_span(span, keys);
            for (int64_t row = 0; row < rows; ++row) {
                mask(row, span, columns);
                const float* s = scores + row * kSpan;
                float* out = a.out + row * a.out_stride + span;
                for (int64_t c = 0; c < keys; c += kLanes) {
                    const float top = largest(load(s + c));
                    best[row] = top > best[row] ? top : best[row];
                    store_some(out + c, load(s + c), keys - c);
                }
            }
        }
        for (int64_t row = 0; row < rows; ++row)
            normalize(a.out + row * a.out_stride, a.keys, best[row]);
    }

    static void normalize(float* weights, int64_t count, float best) {
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

static inline void finish(const Attend& a, const Softmax& s) {
    for (int64_t row = 0; row < s.rows; ++row) {
        Floats total = splat(sum(load(s.totals + row * kLanes)));
        if (a.sinks) total = total + exp(splat(a.sinks[row % a.group] - s.best[row]));
        float* out = a.out + row / a.group * a.out_stride + row % a.group * a.cache.value_dim;
        for (int64_t d = 0; d < a.cache.value_dim; d += kLanes)
            store_some(out + d, load(s.mixed + row * s.padded + d) / total, a.cache.value_dim - d);
    }
}

// The kernels of attention with what Chosen<T> says computes with elements T of the cache:
// Products, or Few for so few rows as few() says, or Shared where values are columns of keys.
template <template <class> class Chosen>
struct AttentionKernels {
    template <class F>
    static void with_worker(const Attend& a, const F& f) {
        with_element(a.cache.type, [&](auto e) {
            using Its = Chosen<decltype(e)>;
            if (a.cache.shared)
                f(Worker<decltype(e), typename Its::Shared>(a));
            else if (Its::few(a.tokens * a.group))
                f(Worker<decltype(e), typename Its::Few>(a));
            else
                f(Worker<decltype(e), typename Its::Products>(a));
        });
    }

    static void attend(const Attend& a) {
        with_worker(a, [&](const auto& worker) { finish(a, worker.take_all()); });
    }

    static void attend_chunk(const Attend& a, int64_t chunk, float* partial) {
        const Softmax sums(a.tokens * a.group, a.cache.padded_value_dim, partial);
        with_worker(a, [&](const auto& worker) { worker.take_chunk(chunk, sums); });
    }

    static void merge_chunks(const Attend& a, float* partials, int64_t count) {
        const int64_t rows = a.tokens * a.group, padded = a.cache.padded_value_dim;
        const int64_t floats = partial_floats(rows, padded);
        const Softmax sums(rows, padded, partials);
        for (int64_t i = 1; i < count; ++i)
            sums.merge(Softmax(rows, padded, partials + i * floats));
        finish(a, sums);
    }

    static void attention_weights(const Attend& a) {
        with_worker(a, [&](const auto& worker) { worker.all_weights(); });
    }
};

}  // namespace GALLEY_ISA
}  // namespace galley
