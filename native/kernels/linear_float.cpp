// Linear layers whose inputs stay floats, with weights of every kind.
#include "linear_mixed.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

GALLEY_INLINE Floats load_element(const float* w) { return load(w); }
GALLEY_INLINE Floats load_element(const uint16_t* w) { return load_f16(w); }

// float32 weights, and float16 ones, which become floats as they are loaded.
template <class Element, int R, int B>
struct TileFloats {
    static void run(const Linear& l, int64_t row, int64_t block, const Ahead& ahead) {
        const int64_t depth = l.matrix->depth;
        const Element* w =
            reinterpret_cast<const Element*>(l.matrix->weights) + block * depth * kLanes;
        const float* x[R];
        const int64_t block_bytes = depth * kLanes * static_cast<int64_t>(sizeof(Element));
        const uint8_t* next = ahead.from(reinterpret_cast<const uint8_t*>(w), block_bytes);
        Floats acc[R][B];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) {
            x[r] = reinterpret_cast<const float*>(l.x.data + (row + r) * l.x.stride);
            GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = splat(0.0f);
        }
        constexpr int64_t kPerLine = sizeof(float) / sizeof(Element);
        for (int64_t k = 0; k < depth; ++k) {
            if (k % kPerLine == 0) {
                GALLEY_UNROLL for (int b = 0; b < B; ++b) fetch(next + b * block_bytes);
                next += ahead.pace;
            }
            Floats v[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) v[b] =
                load_element(w + (b * depth + k) * kLanes);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Floats a = splat(x[r][k]);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = fma(a, v[b], acc[r][b]);
            }
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int b = 0; b < B; ++b)
            finish(l, row + r, block + b, acc[r][b]);
    }
};

template <int R, int B>
using TileF32 = TileFloats<float, R, B>;
template <int R, int B>
using TileF16 = TileFloats<uint16_t, R, B>;

// bfloat16 weights, inputs as they are.
template <int R, int B>
struct TileWide {
    static void run(const Linear& l, int64_t row, int64_t block, const Ahead& ahead) {
        const int64_t depth = l.matrix->depth, padded = l.matrix->padded_depth;
        const uint16_t* w =
            reinterpret_cast<const uint16_t*>(l.matrix->weights) + block * padded * kLanes;
        const float* x[R];
        const int64_t block_bytes = padded * kLanes * static_cast<int64_t>(sizeof(uint16_t));
        const uint8_t* next = ahead.from(reinterpret_cast<const uint8_t*>(w), block_bytes);
        Floats acc[R][B];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) {
            x[r] = reinterpret_cast<const float*>(l.x.data + (row + r) * l.x.stride);
            GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = splat(0.0f);
        }
        for (int64_t k = 0; k < depth; k += 2, next += ahead.pace) {
            GALLEY_UNROLL for (int b = 0; b < B; ++b) fetch(next + b * block_bytes);
            Floats first[B], second[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b)
                widen_pairs(w + (b * padded + k) * kLanes, first[b], second[b]);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Floats a = splat(x[r][k]);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = fma(a, first[b], acc[r][b]);
            }
            if (k + 1 == depth) break;
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Floats a = splat(x[r][k + 1]);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = fma(a, second[b], acc[r][b]);
            }
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int b = 0; b < B; ++b)
            finish(l, row + r, block + b, acc[r][b]);
    }
};

// Columns of integer weights one by one.
struct FloatInputs {
    using Element = float;
    using Factors = Floats;
    static constexpr int kColumns = 1;

    template <class Weights>
    GALLEY_INLINE Floats factors(Bytes four, int at) {
        return widen(four, at);
    }
    GALLEY_INLINE Floats splat(const float* x) { return GALLEY_ISA::splat(*x); }
    GALLEY_INLINE Floats dot(Floats sum, Floats x, Floats w) { return fma(x, w, sum); }
    // Of a group's columns up to `end`.
    GALLEY_INLINE float sum_of(const Linear& l, const float* x, int64_t group, int64_t end) {
        return sum_columns(x, group * l.matrix->group, end);
    }
};

template <class Weights>
using Widened = Mixed<Weights, FloatInputs>;

}  // namespace

void linear_float(const Linear& l, int64_t begin, int64_t end, uint8_t*) {
    switch (l.matrix->kind) {
        case Kind::kF32:
            return Tiler<TileF32, kMaxRows, kMaxRows, kBlocks>::run(l, begin, end);
        case Kind::kBF16:
            return Tiler<TileWide, kMaxRows, kMaxRows, kBlocks>::run(l, begin, end);
        case Kind::kF16:
            return Tiler<TileF16, kMaxRows, kMaxRows, kBlocks>::run(l, begin, end);
        case Kind::kInt8:
            return run_mixed<Widened<StoredInt8>>(l, begin, end);
        case Kind::kInt4:
            return run_mixed<Widened<StoredInt4>>(l, begin, end);
    }
}

}  // namespace GALLEY_ISA
}  // namespace galley
