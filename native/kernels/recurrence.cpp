// Layers that keep a state of fixed size instead of keys and values: one token at a time, so a
// row's bits do not depend on how a prompt was cut into steps.
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// Columns [0, W * 16) from `at` on; each column's sums run over the state's rows in order.
template <int W, bool kBegins>
void recur_columns(const Recurrence& r, int64_t at) {
    const Floats decay = splat(r.decay);
    const auto decayed = [&](int64_t i, int w) {
        if (kBegins) return splat(0.0f);
        return load(r.from + i * r.stride + at + w * kLanes) * decay;
    };
    Floats v[W], added[W], y[W];
    GALLEY_UNROLL for (int w = 0; w < W; ++w) {
        v[w] = added[w] = load_some(r.v + at + w * kLanes, r.width - at - w * kLanes);
        y[w] = splat(0.0f);
    }
    if (r.delta && !kBegins) {
        for (int64_t i = 0; i < r.key_dim; ++i) {
            const Floats k = splat(r.k[i]);
            GALLEY_UNROLL for (int w = 0; w < W; ++w) y[w] = fma(k, decayed(i, w), y[w]);
        }
        GALLEY_UNROLL for (int w = 0; w < W; ++w) {
            added[w] = v[w] - y[w];
            y[w] = splat(0.0f);
        }
    }
    GALLEY_UNROLL for (int w = 0; w < W; ++w) added[w] = added[w] * splat(r.beta);
    for (int64_t i = 0; i < r.key_dim; ++i) {
        const Floats k = splat(r.k[i]), q = splat(r.q[i]);
        GALLEY_UNROLL for (int w = 0; w < W; ++w) {
            const Floats s = fma(k, added[w], decayed(i, w));
            store(r.to + i * r.stride + at + w * kLanes, s);
            y[w] = fma(q, s, y[w]);
        }
    }
    GALLEY_UNROLL for (int w = 0; w < W; ++w) store_some(
        r.y + at + w * kLanes, fma(splat(r.skip), v[w], y[w]), r.width - at - w * kLanes);
}

template <bool kBegins>
void recur_all(const Recurrence& r) {
    int64_t at = 0;
    for (; r.width - at > kLanes; at += 2 * kLanes) recur_columns<2, kBegins>(r, at);
    for (; at < r.width; at += kLanes) recur_columns<1, kBegins>(r, at);
}

}  // namespace

void recur(const Recurrence& r) { return r.from ? recur_all<false>(r) : recur_all<true>(r); }

void causal_conv(const CausalConv& c) {
    for (int64_t i = 0; i < c.width; i += kLanes) {
        const int64_t left = c.width - i;
        Floats sum = c.bias ? load_some(c.bias + i, left) : splat(0.0f);
        for (int64_t j = 0; j < c.size; ++j)
            sum = fma(load_some(c.weights + j * c.stride + i, left), load_some(c.rows[j] + i, left),
                      sum);
        store_some(c.y + i, sum * (splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - sum))), left);
    }
}

}  // namespace GALLEY_ISA
}  // namespace galley
