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

// With so many tiles of rows, float16 weights become floats once for all of them.
constexpr int64_t kManyTiles = 8;
constexpr int64_t kWidePanel = 512 << 10;  // bytes; stays in the second-level cache
static_assert(kWidePanel <= kLinearScratch, "see kernels.hpp");

void widen(const uint16_t* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_f16(from + i));
}

void run_f16(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) {
    const int64_t block = l.matrix->depth * kLanes;
    const int64_t fit = kWidePanel / (block * static_cast<int64_t>(sizeof(float)));
    const int64_t width = fit < kBlocksPerItem ? fit / kBlocks * kBlocks : kBlocksPerItem;
    if (l.rows <= (kManyTiles - 1) * kMaxRows || width == 0)
        return Tiler<TileF16, kMaxRows, kMaxRows, kBlocks>::run(l, begin, end);
    float* floats = reinterpret_cast<float*>(scratch);
    const uint16_t* weights = reinterpret_cast<const uint16_t*>(l.matrix->weights);
    for (int64_t panel = begin; panel < end; panel += width) {
        const int64_t blocks = end - panel < width ? end - panel : width;
        const int64_t left = l.matrix->outputs - panel * kLanes;
        widen(weights + panel * block, blocks * block, floats);
        Matrix matrix = *l.matrix;
        matrix.kind = Kind::kF32;
        matrix.weights = scratch;
        matrix.outputs = left < blocks * kLanes ? left : blocks * kLanes;
        Linear some = l;
        some.matrix = &matrix;
        some.bias = l.bias ? l.bias + panel * kLanes : nullptr;
        some.y = l.y + panel * kLanes;
        Tiler<TileF32, kMaxRows, kMaxRows, kBlocks>::run(some, 0, blocks);
    }
}

}  // namespace

void linear_float(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) {
    switch (l.matrix->kind) {
        case Kind::kF32:
            return Tiler<TileF32, kMaxRows, kMaxRows, kBlocks>::run(l, begin, end);
        case Kind::kBF16:
            return Tiler<TileWide, kMaxRows, kMaxRows, kBlocks>::run(l, begin, end);
        case Kind::kF16:
            return run_f16(l, begin, end, scratch);
        case Kind::kInt8:
            return run_mixed<Widened<StoredInt8>>(l, begin, end);
        case Kind::kInt4:
            return run_mixed<Widened<StoredInt4>>(l, begin, end);
    }
}

}  // namespace GALLEY_ISA
}  // namespace galley
