// The tile registers of AMX, as all kernels here share them out.
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

}  // namespace GALLEY_ISA
}  // namespace galley
