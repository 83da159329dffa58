// Tiles of linear layers with int8 and int4 weights and inputs that stay floats, or become
// bfloat16.
#pragma once

#include "groups.hpp"
#include "tile.hpp"

namespace galley {
namespace GALLEY_ISA {

// Four columns in a row are added to sums of their own, one by one or in pairs, so that few outputs
// do not wait for each addition to end.
constexpr int kSumColumns = 4;
// Rows of a block whose sums are in registers all at once.
constexpr int kStreamRows = kWidth == 16 ? 5 : kWidth == 8 ? 1 : 0;
// Columns after which these are added up, in groups that are longer: so many columns of weights
// stay in the nearest cache.
constexpr int64_t kColumns = 256;

struct StoredInt8 {
    static constexpr int64_t kStep = 4;  // k a register of weights holds
    static constexpr int32_t kOffset = 128;

    GALLEY_INLINE Bytes four(Bytes w, int64_t) { return w; }
    GALLEY_INLINE Pairs pair(Bytes four, int at) { return widen_pair(four, at); }
};

struct StoredInt4 {
    static constexpr int64_t kStep = 8;
    static constexpr int32_t kOffset = 8;

    // k = 0 to 3 in the lower halves of bytes, 4 to 7 in the upper ones.
    GALLEY_INLINE Bytes four(Bytes w, int64_t first) { return nibbles(w, first); }
    GALLEY_INLINE Pairs pair(Bytes four, int at) { return widen_small_pair(four, at); }
};

// `Input` says how many columns are multiplied at a time, and how.
template <class Weights, class Input>
struct Mixed {
    using Element = typename Input::Element;
    using Factors = typename Input::Factors;

    template <int R, int B>
    struct Tile {
        static constexpr int64_t kStep = Weights::kStep;
        static constexpr int kSums = kSumColumns / Input::kColumns;
        // Sums of an output at a time: all, or the columns are gone through again for the next.
        static constexpr int kAtOnce = R * B <= kStreamRows ? kSums : 1;
        using Partial = Floats[kAtOnce][R][B];

        static void run(const Linear& l, int64_t row, int64_t block, const Ahead& ahead) {
            const Matrix& m = *l.matrix;
            const int64_t block_bytes = m.padded_depth * 4 * kLanes / kStep;
            const uint8_t* w = m.weights + block * block_bytes;
            const uint8_t* next = ahead.from(w, block_bytes);
            const Element* x[R];
            Floats acc[R][B];
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                x[r] = reinterpret_cast<const Element*>(l.x.data + (row + r) * l.x.stride);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = splat(0.0f);
            }
            uint64_t fetched = 0;  // of what is ahead, in bytes / kSums
            for (int64_t g = 0; g < m.groups; ++g) {
                Bytes offsets[B];
                GALLEY_UNROLL for (int b = 0; b < B; ++b) offsets[b] =
                    load_offsets(m, block + b, g, Weights::kOffset);
                const int64_t end = g + 1 < m.groups ? (g + 1) * m.group : m.depth;
                for (int64_t begin = g * m.group; begin < end; begin += kColumns) {
                    const int64_t stop = begin + kColumns < end ? begin + kColumns : end;
                    for (int s = 0; s < kSums; s += kAtOnce) {
                        Partial sums = {};
                        // Out of the registers during the loop below, which has none to spare.
                        if constexpr (kAtOnce < kSums) asm("" : "+m"(acc));
                        int64_t k = begin;
                        for (; k + kStep <= stop; k += kStep, fetched += kAtOnce * ahead.pace) {
                            GALLEY_UNROLL for (int b = 0; b < B; ++b)
                                fetch(next + fetched / kSums + b * block_bytes);
                            add(sums, s, w + k * 4 * kLanes / kStep, block_bytes, offsets, x, k);
                        }
                        if (k < stop) add_last(sums, s, l, row, block, offsets);
                        scale(m, block, g, sums, acc);
                    }
                }
                if (m.minima) add_minima(l, x, block, g, end, acc);
            }
            GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int b = 0; b < B; ++b)
                finish(l, row + r, block + b, acc[r][b] * splat(1 / kWidened));
        }

        // The products of one register of weights for sums from `first` on; `x` from column k on.
        GALLEY_INLINE void add(Partial& sums, int first, const uint8_t* w, int64_t block_bytes,
                               const Bytes (&offsets)[B], const Element* const (&x)[R], int64_t k) {
            Bytes stored[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) stored[b] = load_bytes(w + b * block_bytes);
            GALLEY_UNROLL for (int64_t j = 0; j < kStep; j += 4) {
                Bytes four[B];
                GALLEY_UNROLL for (int b = 0; b < B; ++b) four[b] =
                    Weights::four(stored[b], j) - offsets[b];
                GALLEY_UNROLL for (int s = 0; s < kAtOnce; ++s) {
                    const int at = (first + s) * Input::kColumns;
                    Factors v[B];
                    GALLEY_UNROLL for (int b = 0; b < B; ++b) v[b] =
                        Input::template factors<Weights>(four[b], at);
                    GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                        const Factors a = Input::splat(x[r] + k + j + at);
                        GALLEY_UNROLL for (int b = 0; b < B; ++b) sums[s][r][b] =
                            Input::dot(sums[s][r][b], a, v[b]);
                    }
                }
                if constexpr (kAtOnce < kSums) hold(sums[0]);
            }
        }

        // The same for a depth that fills no register: zeros take the place of what lies behind x.
        static void add_last(Partial& sums, int first, const Linear& l, int64_t row, int64_t block,
                             const Bytes (&offsets)[B]) {
            const Matrix& m = *l.matrix;
            const int64_t begin = m.depth / kStep * kStep;
            Element padded[R][kStep] = {};
            const Element* x[R];
            for (int r = 0; r < R; ++r) {
                const uint8_t* elements = l.x.data + (row + r) * l.x.stride;
                memcpy(padded[r], elements + begin * sizeof(Element),
                       (m.depth - begin) * sizeof(Element));
                x[r] = padded[r];
            }
            const int64_t column_bytes = 4 * kLanes / kStep;
            const uint8_t* w = m.weights + (block * m.padded_depth + begin) * column_bytes;
            add(sums, first, w, m.padded_depth * column_bytes, offsets, x, 0);
        }

        GALLEY_INLINE void hold(Floats (&sums)[R][B]) {
            GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int b = 0; b < B; ++b)
                keep_in_registers(sums[r][b]);
        }

        GALLEY_INLINE void add_minima(const Linear& l, const Element* const (&x)[R], int64_t block,
                                      int64_t g, int64_t end, Floats (&acc)[R][B]) {
            const Matrix& m = *l.matrix;
            Floats least[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) least[b] = load_minima(m, block + b, g);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const float sum = Input::sum_of(l, x[r], g, end);
                const Floats wide = splat(sum * kWidened);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] =
                    fma(wide, least[b], acc[r][b]);
            }
        }

        GALLEY_INLINE void scale(const Matrix& m, int64_t block, int64_t g, const Partial& sums,
                                 Floats (&acc)[R][B]) {
            GALLEY_UNROLL for (int b = 0; b < B; ++b) {
                const Floats scales = load_scales(m, block + b, g);
                GALLEY_UNROLL for (int s = 0; s < kAtOnce; ++s)
                    GALLEY_UNROLL for (int r = 0; r < R; ++r) acc[r][b] =
                        fma(sums[s][r][b], scales, acc[r][b]);
            }
        }
    };
};

template <class Layer>
void run_mixed(const Linear& l, int64_t begin, int64_t end) {
    Tiler<Layer::template Tile, kMaxRows, kStreamRows, kBlocks>::run(l, begin, end);
}

}  // namespace GALLEY_ISA
}  // namespace galley
