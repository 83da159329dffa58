// Linear layers whose inputs are bfloat16, with weights that are bfloat16 or integers.
#include "linear_mixed.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

template <int R, int B>
struct TileBF16 {
    static void run(const Linear& l, int64_t row, int64_t block, const Ahead& ahead) {
        const int64_t depth = l.matrix->padded_depth;
        const uint16_t* w =
            reinterpret_cast<const uint16_t*>(l.matrix->weights) + block * depth * kLanes;
        const uint16_t* x[R];
        const int64_t block_bytes = depth * kLanes * static_cast<int64_t>(sizeof(uint16_t));
        const uint8_t* next = ahead.from(reinterpret_cast<const uint8_t*>(w), block_bytes);
        Floats acc[R][B];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) {
            x[r] = reinterpret_cast<const uint16_t*>(l.x.data + (row + r) * l.x.stride);
            GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = splat(0.0f);
        }
        for (int64_t k = 0; k < depth; k += 2, next += ahead.pace) {
            GALLEY_UNROLL for (int b = 0; b < B; ++b) fetch(next + b * block_bytes);
            Pairs v[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) v[b] =
                load_pairs(w + (b * depth + k) * kLanes);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Pairs a = splat_pair(x[r] + k);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = dot_pairs(acc[r][b], a, v[b]);
            }
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int b = 0; b < B; ++b)
            finish(l, row + r, block + b, acc[r][b]);
    }
};

// Columns of integer weights two at a time.
struct BF16Inputs {
    using Element = uint16_t;
    using Factors = Pairs;
    static constexpr int kColumns = 2;

    template <class Weights>
    GALLEY_INLINE Pairs factors(Bytes four, int at) {
        return Weights::pair(four, at);
    }
    GALLEY_INLINE Pairs splat(const uint16_t* x) { return splat_pair(x); }
    GALLEY_INLINE Floats dot(Floats sum, Pairs x, Pairs w) { return dot_pairs(sum, x, w); }
    // Of a group's columns: rows have it ready.
    GALLEY_INLINE float sum_of(const Linear& l, const uint16_t* x, int64_t group, int64_t) {
        return load_float(reinterpret_cast<const uint8_t*>(x) + l.x.sums + 4 * group);
    }
};

template <class Weights>
using Widened = Mixed<Weights, BF16Inputs>;

}  // namespace

void linear_bf16(const Linear& l, int64_t begin, int64_t end, uint8_t*) {
    if (l.matrix->kind == Kind::kBF16)
        Tiler<TileBF16, kMaxRows, kMaxRows, kBlocks>::run(l, begin, end);
    else if (l.matrix->kind == Kind::kInt8)
        run_mixed<Widened<StoredInt8>>(l, begin, end);
    else
        run_mixed<Widened<StoredInt4>>(l, begin, end);
}

}  // namespace GALLEY_ISA
}  // namespace galley
