// Products with an adapter's factors, which are thin: few rows share them, so each output has
// several sums of its own instead of waiting for each addition to end.
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

constexpr int kSums = 4;          // of an output, over columns k with k % kSums equal
constexpr int64_t kAhead = 2048;  // bytes to fetch before they are needed: factors lie in a row
constexpr int kRowsAtOnce = kWidth == 16 ? 4 : 1;

// Column k of a block of outputs; bfloat16 lies in pairs of columns.
template <class Element>
struct Columns;

template <>
struct Columns<float> {
    const float* w;
    Columns(const Matrix& m, int64_t block)
        : w(reinterpret_cast<const float*>(m.weights) + block * m.depth * kLanes) {}
    GALLEY_INLINE void four(const Columns& c, int64_t k, Floats* v) {
        GALLEY_UNROLL for (int i = 0; i < kSums; ++i) v[i] = load(c.w + (k + i) * kLanes);
    }
    GALLEY_INLINE Floats one(const Columns& c, int64_t k) { return load(c.w + k * kLanes); }
};

struct Half {};
template <>
struct Columns<Half> {
    const uint16_t* w;
    Columns(const Matrix& m, int64_t block)
        : w(reinterpret_cast<const uint16_t*>(m.weights) + block * m.depth * kLanes) {}
    GALLEY_INLINE void four(const Columns& c, int64_t k, Floats* v) {
        GALLEY_UNROLL for (int i = 0; i < kSums; ++i) v[i] = load_f16(c.w + (k + i) * kLanes);
    }
    GALLEY_INLINE Floats one(const Columns& c, int64_t k) { return load_f16(c.w + k * kLanes); }
};

struct Brain {};
template <>
struct Columns<Brain> {
    const uint16_t* w;
    Columns(const Matrix& m, int64_t block)
        : w(reinterpret_cast<const uint16_t*>(m.weights) + block * m.padded_depth * kLanes) {}
    GALLEY_INLINE void four(const Columns& c, int64_t k, Floats* v) {
        widen_pairs(c.w + k * kLanes, v[0], v[1]);
        widen_pairs(c.w + (k + 2) * kLanes, v[2], v[3]);
    }
    GALLEY_INLINE Floats one(const Columns& c, int64_t k) {
        Floats first, second;
        widen_pairs(c.w + (k & ~int64_t{1}) * kLanes, first, second);
        return k & 1 ? second : first;
    }
};

// A row's sums have one order, however many rows are computed at once.
template <class Element, int R>
void compute(const LowRank& l, int64_t row) {
    const Matrix& m = *l.matrix;
    constexpr int64_t kStep = kSums * kLanes * sizeof(*Columns<Element>::w);
    const int64_t blocks = quotient_up(m.outputs, kLanes);
    const int64_t whole = m.depth / kSums * kSums;
    const float* x = l.x + row * l.x_stride;
    for (int64_t block = 0; block < blocks; ++block) {
        const Columns<Element> columns(m, block);
        Floats sums[R][kSums];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < kSums; ++i)
            sums[r][i] = splat(0.0f);
        for (int64_t k = 0; k < whole; k += kSums) {
            Floats w[kSums];
            Columns<Element>::four(columns, k, w);
            const auto* next = reinterpret_cast<const uint8_t*>(columns.w + k * kLanes) + kAhead;
            for (int64_t at = 0; at < kStep; at += 64) fetch(next + at);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int i = 0; i < kSums; ++i)
                sums[r][i] = fma(splat(x[r * l.x_stride + k + i]), w[i], sums[r][i]);
        }
        for (int64_t k = whole; k < m.depth; ++k) {
            const Floats w = Columns<Element>::one(columns, k);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) sums[r][0] =
                fma(splat(x[r * l.x_stride + k]), w, sums[r][0]);
        }
        const int64_t left = m.outputs - block * kLanes;
        GALLEY_UNROLL for (int r = 0; r < R; ++r) {
            float* y = l.y + (row + r) * l.y_stride + block * kLanes;
            const Floats sum = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
            Floats result = sum * splat(l.scale);
            if (l.adds) result = load_some(y, left) + result;
            store_some(y, result, left);
        }
    }
}

template <class Element>
void compute_all(const LowRank& l) {
    int64_t row = 0;
    for (; row + kRowsAtOnce <= l.rows; row += kRowsAtOnce) compute<Element, kRowsAtOnce>(l, row);
    for (; row < l.rows; ++row) compute<Element, 1>(l, row);
}

}  // namespace

void low_rank(const LowRank& l) {
    if (l.matrix->kind == Kind::kF32) return compute_all<float>(l);
    if (l.matrix->kind == Kind::kF16) return compute_all<Half>(l);
    compute_all<Brain>(l);
}

}  // namespace GALLEY_ISA
}  // namespace galley
