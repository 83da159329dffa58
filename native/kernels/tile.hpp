// How the rows and blocks of a linear layer are cut into register tiles.
#pragma once

#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {

// Runs `Tile<R, B>` (R rows by B blocks) over rows x [begin, end). Few rows take more blocks at a
// time, so that there are enough sums in flight; every tile adds in the same order, so its shape
// never shows.
template <template <int, int> class Tile, int kMaxRows, int kWide, int kNarrow>
struct Tiler {
    template <int R, int B>
    static void column(const Linear& l, int64_t row, int64_t begin, int64_t end) {
        int64_t block = begin;
        for (; block + B <= end; block += B) Tile<R, B>::run(l, row, block);
        for (; block < end; ++block) Tile<R, 1>::run(l, row, block);
    }

    template <int R>
    static void rows(int64_t count, const Linear& l, int64_t row, int64_t begin, int64_t end) {
        if (count == R) return column<R, (R <= 2 ? kWide : kNarrow)>(l, row, begin, end);
        if constexpr (R > 1) rows<R - 1>(count, l, row, begin, end);
    }

    // Tiles of nearly equal height: 8 rows are 4 + 4 and not 6 + 2.
    static void run(const Linear& l, int64_t begin, int64_t end) {
        const int64_t tiles = (l.rows + kMaxRows - 1) / kMaxRows;
        int64_t row = 0;
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t next = l.rows * (tile + 1) / tiles;
            rows<kMaxRows>(next - row, l, row, begin, end);
            row = next;
        }
    }
};

// Writes 16 outputs of one row, bias added; fewer at the right edge.
GALLEY_INLINE void finish(const Linear& l, int64_t row, int64_t block, Floats v) {
    if (l.bias) v = v + load(l.bias + block * kLanes);
    store_some(l.y + row * l.y_stride + block * kLanes, v, l.matrix->outputs - block * kLanes);
}

}  // namespace GALLEY_ISA
}  // namespace galley
