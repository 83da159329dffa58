// Loops that only multiply tiles: the most that linear layers on AMX could reach here.
#include "amx.hpp"
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
// Four tiles of sums, each of them [16][16] of products 64 bytes deep.
static constexpr int64_t kTileProducts = 4 * kLanes * kLanes * 64;

int64_t multiply_int8(int64_t steps) {
    configure_tiles(kLanes);
    for (int64_t s = 0; s < steps; ++s) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return steps * kTileProducts * 2;
}

int64_t multiply_bf16(int64_t steps) {
    configure_tiles(kLanes);
    for (int64_t s = 0; s < steps; ++s) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return steps * kTileProducts;
}
}  // namespace GALLEY_ISA
}  // namespace galley
