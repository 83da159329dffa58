// The tile registers of AMX, as all kernels here share them out, and their products.
#pragma once

#include "vec.hpp"

namespace galley {
namespace GALLEY_ISA {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;

// Tiles 0 to 3 hold sums: number 2 * r + b those of row tile r and block b of weights. 4 and 5 are
// activations, 6 and 7 weights. All start as zeros; `rows` are those of the first six.
GALLEY_INLINE void configure_tiles(int64_t rows) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) {
        config.row_bytes[i] = kTileRowBytes;
        config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : kTileRows);
    }
    // The intrinsics for tiles do not say that they read memory.
    asm volatile("" : : "m"(config));
    _tile_loadconfig(&config);
}

// What activations are multiplied with; integers are signed bytes themselves.
enum class Tiles { kBFloat16, kSigned, kUnsigned };

// The numbers are part of the instruction.
#define GALLEY_TILE_DOT(sums, x, w)             \
    if constexpr (kWith == Tiles::kBFloat16)    \
        _tile_dpbf16ps(sums, x, w);             \
    else if constexpr (kWith == Tiles::kSigned) \
        _tile_dpbssd(sums, x, w);               \
    else                                        \
        _tile_dpbsud(sums, x, w)

template <int R, int B>
GALLEY_INLINE void zero_sums() {
    _tile_zero(0);
    if constexpr (B == 2) _tile_zero(1);
    if constexpr (R == 2) _tile_zero(2);
    if constexpr (R == 2 && B == 2) _tile_zero(3);
}

// Rows of sums are `stride` bytes apart.
template <int R, int B, class Sum>
GALLEY_INLINE void load_sums(Sum* const (&sums)[R][B], int64_t stride) {
    _tile_loadd(0, sums[0][0], stride);
    if constexpr (B == 2) _tile_loadd(1, sums[0][B - 1], stride);
    if constexpr (R == 2) _tile_loadd(2, sums[R - 1][0], stride);
    if constexpr (R == 2 && B == 2) _tile_loadd(3, sums[R - 1][B - 1], stride);
}
template <int R, int B, class Sum>
GALLEY_INLINE void store_sums(Sum* const (&sums)[R][B], int64_t stride) {
    _tile_stored(0, sums[0][0], stride);
    if constexpr (B == 2) _tile_stored(1, sums[0][B - 1], stride);
    if constexpr (R == 2) _tile_stored(2, sums[R - 1][0], stride);
    if constexpr (R == 2 && B == 2) _tile_stored(3, sums[R - 1][B - 1], stride);
}

// R tiles of activations, whose rows are `stride` bytes apart, by B of weights; then on to the
// next.
template <Tiles kWith, int R, int B>
GALLEY_INLINE void multiply_tiles(const uint8_t* (&x)[R], int64_t stride, const uint8_t* (&w)[B]) {
    _tile_loadd(4, x[0], stride);
    _tile_loadd(6, w[0], kTileRowBytes);
    GALLEY_TILE_DOT(0, 4, 6);
    if constexpr (R == 2) {
        _tile_loadd(5, x[R - 1], stride);
        GALLEY_TILE_DOT(2, 5, 6);
    }
    if constexpr (B == 2) {
        _tile_loadd(7, w[B - 1], kTileRowBytes);
        GALLEY_TILE_DOT(1, 4, 7);
    }
    if constexpr (R == 2 && B == 2) {
        GALLEY_TILE_DOT(3, 5, 7);
    }
    for (int r = 0; r < R; ++r) x[r] += kTileRowBytes;
    for (int b = 0; b < B; ++b) w[b] += kTileBytes;
}

}  // namespace GALLEY_ISA
}  // namespace galley
