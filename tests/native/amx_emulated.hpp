// What kernels/linear_amx.cpp is written in, on a CPU without AMX: vectors of sixteen floats
// (simd/portable.hpp, as wide), pairs of bfloat16 in a register, and tile registers in memory.
#pragma once

#include "portable_512.hpp"

namespace galley {
namespace GALLEY_ISA {

// 16 pairs of bfloat16.
struct Pairs {
    UintPart p;
};
// Bytes `at` and `at + 1` of each lane's four, signed, 2 ** 24 times as large.
GALLEY_INLINE Pairs widen_pair(Bytes w, int at) {
    const Floats even = to_floats(move_up(w, at)), odd = to_floats(move_up(w, at + 1));
    return {(UintPart)even.p[0] >> 16 | ((UintPart)odd.p[0] & 0xffff0000u)};
}
GALLEY_INLINE Pairs widen_small_pair(Bytes w, int at) { return widen_pair(w, at); }
GALLEY_INLINE void store_bf16(uint16_t* a, Floats v) {
    for (int i = 0; i < kWidth; ++i) a[i] = to_bf16(v.p[0][i]);
}

struct TileRegister {
    int rows = 0;
    uint8_t bytes[16][64] = {};
};
inline thread_local TileRegister tiles[8];

inline void _tile_loadconfig(const void* config) {
    for (int i = 0; i < 8; ++i) {
        tiles[i] = {};
        tiles[i].rows = static_cast<const uint8_t*>(config)[48 + i];
    }
}
inline void _tile_release() {}
inline void _tile_zero(int tile) { memset(tiles[tile].bytes, 0, sizeof tiles[tile].bytes); }
inline void _tile_loadd(int tile, const void* from, int64_t stride) {
    for (int r = 0; r < tiles[tile].rows; ++r)
        memcpy(tiles[tile].bytes[r], static_cast<const uint8_t*>(from) + r * stride, 64);
}
inline void _tile_stored(int tile, void* to, int64_t stride) {
    for (int r = 0; r < tiles[tile].rows; ++r)
        memcpy(static_cast<uint8_t*>(to) + r * stride, tiles[tile].bytes[r], 64);
}

// sums[r][n] += sum over k of x[r][k] * w[k / N][n][k % N], N of them in four bytes.
template <class Sum, class X, class W, class Product>
void multiply(int sums, int x, int w, const Product& product) {
    constexpr int kEach = 4 / sizeof(X);
    for (int r = 0; r < tiles[sums].rows; ++r)
        for (int n = 0; n < 16; ++n) {
            Sum sum;
            memcpy(&sum, tiles[sums].bytes[r] + 4 * n, sizeof sum);
            for (int k = 0; k < 16 * kEach; ++k) {
                X a;
                W b;
                memcpy(&a, tiles[x].bytes[r] + k * sizeof a, sizeof a);
                memcpy(&b, tiles[w].bytes[k / kEach] + (n * kEach + k % kEach) * sizeof b,
                       sizeof b);
                sum += product(a, b);
            }
            memcpy(tiles[sums].bytes[r] + 4 * n, &sum, sizeof sum);
        }
}
constexpr auto kOfIntegers = [](auto a, auto b) { return int32_t{a} * int32_t{b}; };
inline void _tile_dpbssd(int sums, int x, int w) {
    multiply<int32_t, int8_t, int8_t>(sums, x, w, kOfIntegers);
}
inline void _tile_dpbsud(int sums, int x, int w) {
    multiply<int32_t, int8_t, uint8_t>(sums, x, w, kOfIntegers);
}
inline void _tile_dpbf16ps(int sums, int x, int w) {
    multiply<float, uint16_t, uint16_t>(
        sums, x, w, [](uint16_t a, uint16_t b) { return from_bf16(a) * from_bf16(b); });
}

}  // namespace GALLEY_ISA
}  // namespace galley
