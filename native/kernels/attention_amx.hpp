// Attention's products on AMX: bfloat16 by bfloat16, as keys and values are kept, so queries and
// weights are rounded to it.
//
// A tile takes 32 elements of up to 16 rows. For a few rows, as decoding has them, filling panels
// of tiles takes longer than the products: they are left to vector registers, which follow the
// definition of the instruction to the bit.
#pragma once

#include "amx.hpp"
#include "attention_few.hpp"
#include "attention_shared.hpp"

namespace galley {
namespace GALLEY_ISA {

GALLEY_INLINE void store_pair(uint16_t* to, Floats first, Floats second) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second.p[0], first.p[0]));
}

// Rows [row_tiles][height] by a panel [blocks] of tiles one below the other: floats, 16 for each
// block.
struct TileProduct {
    const uint16_t* x;
    int64_t x_stride;  // bytes
    const uint8_t* panel;
    int64_t panel_stride;  // bytes from block to block
    int64_t depth_tiles, blocks, row_tiles, height;
    float* y;
    int64_t y_stride;  // floats

    void run() const {
        // The intrinsics for tiles do not say that they read memory.
        asm volatile("" ::: "memory");
        int64_t tile = 0;
        for (; tile + 2 <= row_tiles; tile += 2) by_all<2>(tile);
        if (tile < row_tiles) by_all<1>(tile);
    }

    template <int R>
    void by_all(int64_t tile) const {
        int64_t block = 0;
        for (; block + 2 <= blocks; block += 2) multiply<R, 2>(tile, block);
        if (block < blocks) multiply<R, 1>(tile, block);
    }

    template <int R, int B>
    void multiply(int64_t tile, int64_t block) const {
        const uint8_t *from[R], *by[B];
        float* sums[R][B];
        for (int r = 0; r < R; ++r) {
            const int64_t row = (tile + r) * height;
            from[r] = reinterpret_cast<const uint8_t*>(x) + row * x_stride;
            for (int b = 0; b < B; ++b) sums[r][b] = y + row * y_stride + (block + b) * kLanes;
        }
        for (int b = 0; b < B; ++b) by[b] = panel + (block + b) * panel_stride;
        zero_sums<R, B>();
        for (int64_t d = 0; d < depth_tiles; ++d)
            multiply_tiles<Tiles::kBFloat16, R, B>(from, x_stride, by);
        store_sums<R, B>(sums, y_stride * static_cast<int64_t>(sizeof(float)));
    }
};

// A line of a panel: 16 pairs, of neighbors from two rows.
GALLEY_INLINE void put_line(uint8_t* to, __m512i both_rows) {
    const __m512i order =
        (__m512i)(__v32hi){0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    _mm512_store_si512(to, _mm512_permutexvar_epi16(order, both_rows));
}

// One block's keys, [key_dim][16], as tiles of `depth` elements in all, filled up with zeros.
GALLEY_INLINE void fill_keys(const uint16_t* keys, int64_t key_dim, int64_t depth, uint8_t* to) {
    int64_t d = 0;
    for (; d + 2 <= key_dim; d += 2, to += kTileRowBytes)
        put_line(to, _mm512_loadu_si512(keys + d * kLanes));
    for (; d < depth; d += 2, to += kTileRowBytes)
        put_line(to, _mm512_maskz_loadu_epi16(d < key_dim ? 0xffff : 0, keys + d * kLanes));
}
GALLEY_INLINE void fill_keys(const PairBF16* keys, int64_t key_dim, int64_t depth, uint8_t* to) {
    for (int64_t d = 0; d < depth; d += 2, to += kTileRowBytes)
        _mm512_store_si512(
            to, _mm512_maskz_loadu_epi32(d < key_dim ? 0xffff : 0, keys + d / 2 * kLanes));
}

// Tokens `t` and t + 1 of a block's values, of which there are `count`, to lines `stride` apart.
GALLEY_INLINE void fill_values(const uint16_t* values, int64_t padded_value_dim, int64_t t,
                               int64_t count, uint8_t* to, int64_t stride) {
    const uint16_t *first = values + t * padded_value_dim, *second = first + padded_value_dim;
    const __mmask16 some = t < count ? 0xffff : 0, more = t + 1 < count ? 0xffff : 0;
    for (int64_t d = 0; d < padded_value_dim; d += kLanes, to += stride)
        put_line(to, _mm512_inserti64x4(
                         _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(some, first + d)),
                         _mm256_maskz_loadu_epi16(more, second + d), 1));
}
GALLEY_INLINE void fill_values(const PairBF16* values, int64_t padded_value_dim, int64_t t,
                               int64_t count, uint8_t* to, int64_t stride) {
    const PairBF16* from = values + t / 2 * padded_value_dim;
    for (int64_t d = 0; d < padded_value_dim; d += kLanes, to += stride)
        _mm512_store_si512(to, _mm512_maskz_loadu_epi32(t < count ? 0xffff : 0, from + d));
}

// Sixteen columns of keys, across tokens, as the tile of 32 tokens' values: a block's tokens and
// the next one's, of which there are `count` in all.
GALLEY_INLINE void turn_keys(const uint16_t* block, const uint16_t* next, int64_t columns,
                             int64_t count, uint8_t* to) {
    const auto lanes = [](int64_t n) {
        return static_cast<__mmask16>(n >= kBlockTokens ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
    };
    const __mmask16 some = lanes(count), more = lanes(count - kBlockTokens);
    Floats tile[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
        const int64_t at = least(i, columns - 1) * kBlockTokens;
        tile[i].p[0] = (FloatPart)_mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(some, block + at)),
            _mm256_maskz_loadu_epi16(more, next + at), 1);
    }
    transpose(tile);
    for (int64_t i = 0; i < kLanes; ++i)
        _mm512_store_si512(to + i * kTileRowBytes, (__m512i)tile[i].p[0]);
}

template <class T>
struct TileProducts : AttendRows {
    static constexpr int kTogether = 2;  // see VectorProducts
    static constexpr bool kRounds = true;

    const int64_t row_tiles, height, depth;  // row tiles are of one height; key_dim, filled up
    uint16_t* queries;                       // [row_tiles * height][depth]
    uint16_t* weights;                       // [row_tiles * height][kSpan]
    uint8_t* key_panel;                      // [kSpan / 16][depth / 32] tiles
    uint8_t* value_panel;                    // [padded_value_dim / 16][kSpan / 32] tiles
    float* mixed;  // [row_tiles * height][padded_value_dim], by this span alone

    explicit TileProducts(const Attend& attend)
        : TileProducts(attend, up(attend.tokens * attend.group, kTileRows),
                       up(attend.cache.key_dim, kTileDepth)) {}
    ~TileProducts() { _tile_release(); }
    TileProducts(const TileProducts&) = delete;
    TileProducts& operator=(const TileProducts&) = delete;

    void score_span(int64_t span, int64_t keys) const {
        const int64_t panel_stride = depth / kTileDepth * kTileBytes;
        for (int64_t c = 0; c < keys; c += kBlockTokens) {
            fetch_after(span + c);
            fill_keys(reinterpret_cast<const T*>(piece_of(span + c)), cache.key_dim, depth,
                      key_panel + c / kBlockTokens * panel_stride);
        }
        TileProduct{queries,
                    depth * static_cast<int64_t>(sizeof *queries),
                    key_panel,
                    panel_stride,
                    depth / kTileDepth,
                    quotient_up(keys, kLanes),
                    row_tiles,
                    height,
                    scores,
                    kSpan}
            .run();
    }

    void put_weights(int64_t row, int64_t, int64_t c, const Floats (&p)[kTogether]) const {
        store_pair(weights + row * kSpan + c, p[0], p[1]);
    }

    void mix_span(const Softmax& sums, int64_t span, int64_t keys) const {
        if (cache.shared)
            turn_values(span, keys);
        else
            copy_values(span, keys);
        TileProduct{weights,
                    kSpan * static_cast<int64_t>(sizeof *weights),
                    value_panel,
                    kPanelStride,
                    quotient_up(keys, kTileDepth),
                    cache.padded_value_dim / kLanes,
                    row_tiles,
                    height,
                    mixed,
                    cache.padded_value_dim}
            .run();
        sums.add_span(mixed, shrink);
    }

  private:
    static constexpr int64_t kPanelStride = kSpan / kTileDepth * kTileBytes;

    // Past the last key there may be no block; use another one there.
    const T* block_of(int64_t span, int64_t t, int64_t keys, int64_t offset) const {
        return reinterpret_cast<const T*>(piece_of(t < keys ? span + t : span) + offset);
    }

    void copy_values(int64_t span, int64_t keys) const {
        for (int64_t t = 0; t < up(keys, kTileDepth); t += 2) {
            const int64_t slot = t % kBlockTokens;
            fill_values(block_of(span, t, keys, cache.values), cache.padded_value_dim, slot,
                        keys - t + slot, value_panel + t / 2 * kTileRowBytes, kPanelStride);
        }
    }

    void turn_values(int64_t span, int64_t keys) const {
        if constexpr (sizeof(T) == sizeof(uint16_t))
            for (int64_t t = 0; t < keys; t += kTileDepth) {
                const T* block = block_of(span, t, keys, 0);
                const T* next = block_of(span, t + kBlockTokens, keys, 0);
                for (int64_t d = 0; d < cache.padded_value_dim; d += kLanes)
                    turn_keys(block + d * kBlockTokens, next + d * kBlockTokens,
                              least(kLanes, cache.value_dim - d), keys - t,
                              value_panel + d / kLanes * kPanelStride + t / 2 * kTileRowBytes);
            }
    }

    TileProducts(const Attend& attend, int64_t some, int64_t dims)
        : AttendRows(attend, some,
                     reinterpret_cast<float*>(attend.scratch) +
                         some * attend.cache.padded_value_dim + (some + kSpan) * dims / 2 +
                         (some + attend.cache.padded_value_dim) * kSpan / 2),
          row_tiles(some / kTileRows),
          height(quotient_up(rows, row_tiles)),
          depth(dims),
          queries(reinterpret_cast<uint16_t*>(attend.scratch)),
          weights(queries + some * dims),
          key_panel(reinterpret_cast<uint8_t*>(weights + some * kSpan)),
          value_panel(key_panel + kSpan * dims * 2),
          mixed(reinterpret_cast<float*>(value_panel + kSpan * cache.padded_value_dim * 2)) {
        configure_tiles(height);
        const Floats scale = splat(a.scale);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t d = 0; d < depth; d += kTileDepth) {
                const float* q = query(row) + d;
                const int64_t left = cache.key_dim - d;
                store_pair(queries + row * depth + d, load_some(q, left) * scale,
                           load_some(q + kLanes, left - kLanes) * scale);
            }
    }

    __attribute__((always_inline)) void fetch_after(int64_t key) const {
        const uint8_t* from = piece_after(key);
        for (int64_t i = 0; i < cache.head_bytes; i += kLine) fetch(from + i);
    }
};

// What computes with elements T (AttentionKernels).
template <class T>
struct InTiles : InVectors<T> {};
template <>
struct InTiles<uint16_t> {
    using Products = TileProducts<uint16_t>;
    using Few = FewProducts;
    using Shared = Products;  // for few rows, too: they are of many heads
    static bool few(int64_t rows) { return rows <= FewProducts::kMostRows; }
};
template <>
struct InTiles<PairBF16> {
    using Products = TileProducts<PairBF16>;
    using Few = Products;
    using Shared = Products;
    static bool few(int64_t) { return false; }
};

}  // namespace GALLEY_ISA
}  // namespace galley
