// How the rows and blocks of a linear layer are cut into register tiles.
#pragma once

#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {

// Rows and blocks of outputs of a tile, at most: as many sums as registers.
constexpr int kMaxRows = kWidth == 16 ? 8 : 4;
constexpr int kBlocks = kWidth == 16 ? 2 : 1;
// Whether a core starts two dot products of bytes in each cycle. Intel's servers do, on the two
// ports that also execute all other 512-bit instructions. Zen 4 starts one, and unpacks weights
// meanwhile.
GALLEY_INLINE bool starts_two_dots() {
#if defined(__AVX512VNNI__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}
// Rows of a tile with sums of two types, integers and floats, whose sums all fit the registers.
constexpr int kMixedRows = kWidth == 16 ? 6 : 4;
// Rows of such a tile where one tile is not enough. More would fill the renamed registers at the
// end of each group (measured on Zen 4), but unpacked weights serve more rows (measured on Emerald
// Rapids).
GALLEY_INLINE int64_t many_mixed_rows() { return starts_two_dots() ? kMaxRows : kMixedRows; }

// What to fetch from memory while a tile computes: the next item's weights, a share by each row
// tile.
struct Ahead {
    int64_t blocks;  // from a block to the one in its place in the next item; 0 at the end
    int64_t part, parts;
    int64_t pace;  // bytes to go for each 64 that are used; rounded up, so that none are left out

    const uint8_t* from(const uint8_t* weights, int64_t block_bytes) const {
        return weights + blocks * block_bytes + block_bytes * part / parts;
    }
};

// Blocks whose weights are read again for each tile of rows, and should stay in the second cache.
GALLEY_INLINE int64_t panel_blocks(const Matrix& m, int64_t tiles) {
    constexpr int64_t kPanelBytes = 512 << 10;
    const int64_t element_bytes = m.kind == Kind::kF32 ? 4 : is_integer(m.kind) ? 1 : 2;
    const bool fits = kBlocksPerItem * kLanes * m.padded_depth * element_bytes <= kPanelBytes;
    return tiles == 1 || fits ? kBlocksPerItem : kBlocksPerItem / 2;
}

// Runs `Tile<R, B>` (R rows by B blocks) over rows x [begin, end); every tile adds in the same
// order, so its shape never shows. Up to kStreamRows rows are bound by memory. They take a block at
// a time, because memory is read fastest as one stream of addresses. More are bound by arithmetic
// and take kBlocks at a time, which share the loads of the rows.
//
// Up to kMaxRows rows are one tile, more are tiles of up to `many`.
template <template <int, int> class Tile, int kMaxRows, int kStreamRows, int kBlocks>
struct Tiler {
    template <int R, int B>
    static void column(const Linear& l, int64_t row, int64_t begin, int64_t end, Ahead ahead) {
        int64_t block = begin;
        for (; block + B <= end; block += B) Tile<R, B>::run(l, row, block, ahead);
        for (; block < end; ++block) Tile<R, 1>::run(l, row, block, ahead);
    }

    template <int R>
    static void rows(int64_t count, const Linear& l, int64_t row, int64_t begin, int64_t end,
                     Ahead ahead) {
        if (count == R) {
            if (ahead.parts == 1 && R <= kStreamRows)
                return column<R, 1>(l, row, begin, end, ahead);
            return column<R, kBlocks>(l, row, begin, end, ahead);
        }
        if constexpr (R > 1) rows<R - 1>(count, l, row, begin, end, ahead);
    }

    // Panels of blocks that stay in the cache for all rows; tiles of nearly equal height: 10 rows
    // are 5 + 5 and not 8 + 2.
    static void run(const Linear& l, int64_t begin, int64_t end, int64_t many = kMaxRows) {
        const int64_t blocks = (l.matrix->outputs + kLanes - 1) / kLanes;
        const int64_t tiles = l.rows <= kMaxRows ? 1 : quotient_up(l.rows, many);
        const int64_t width = panel_blocks(*l.matrix, tiles);
        for (int64_t panel = begin; panel < end; panel += width) {
            const int64_t stop = panel + width < end ? panel + width : end;
            const int64_t next_panel = stop + width <= blocks ? width : 0;
            int64_t row = 0;
            for (int64_t tile = 0; tile < tiles; ++tile) {
                const int64_t next = l.rows * (tile + 1) / tiles;
                rows<kMaxRows>(next - row, l, row, panel, stop,
                               {next_panel, tile, tiles, quotient_up(64, tiles)});
                row = next;
            }
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
