// What tiles of weights are made of: as they are stored, or unpacked on their way into a panel.
#pragma once

#include "amx.hpp"
#include "groups.hpp"

namespace galley {
namespace GALLEY_ISA {

// A line of a tile.
GALLEY_INLINE void put(uint8_t* to, Bytes v) { memcpy(to, &v.p[0], sizeof v.p[0]); }
GALLEY_INLINE void put(uint8_t* to, Pairs v) { memcpy(to, &v, sizeof v); }

struct Int4 {
    using Sum = int32_t;
    static constexpr Tiles kWith = Tiles::kSigned;
    static constexpr bool kScaled = true;  // each group, after it is summed
    static constexpr int64_t kDepth = 64;  // of a tile, in elements
    static constexpr int64_t kStep = 8;    // k a register of weights holds
    static constexpr bool kUnpacked = true;
    static constexpr int32_t kZero = 8;    // what is stored for zero, where the matrix does not say
    static constexpr int32_t kOffset = 0;  // that the tiles' weights still have

    GALLEY_INLINE void unpack(Bytes both, Bytes zeros, uint8_t* to) {
        put(to, nibbles(both, 0) - zeros);
        put(to + kTileRowBytes, nibbles(both, 4) - zeros);
    }
};
struct Int8 {
    using Sum = int32_t;
    static constexpr Tiles kWith = Tiles::kUnsigned;
    static constexpr bool kScaled = true;
    static constexpr int64_t kDepth = 64;
    static constexpr int64_t kStep = 4;
    static constexpr bool kUnpacked = false;
    static constexpr int32_t kOffset = 128;
};
struct BFloat16 {
    using Sum = float;
    static constexpr Tiles kWith = Tiles::kBFloat16;
    static constexpr bool kScaled = false;
    static constexpr int64_t kDepth = 32;
    static constexpr int64_t kStep = 2;
    static constexpr bool kUnpacked = false;
};
// Integers as bfloat16, kWidened times as large.
struct Wide : BFloat16 {
    static constexpr bool kScaled = true;
    static constexpr bool kUnpacked = true;
};
struct WideInt4 : Wide {
    static constexpr int64_t kStep = 8;
    static constexpr int32_t kZero = 8;

    GALLEY_INLINE void unpack(Bytes both, Bytes zeros, uint8_t* to) {
        for (int i = 0; i < 4; ++i) {
            const Bytes four = nibbles(both, i / 2 * 4) - zeros;
            put(to + i * kTileRowBytes, widen_small_pair(four, i % 2 * 2));
        }
    }
};
struct WideInt8 : Wide {
    static constexpr int64_t kStep = 4;
    static constexpr int32_t kZero = 128;

    GALLEY_INLINE void unpack(Bytes four, Bytes zeros, uint8_t* to) {
        for (int i = 0; i < 2; ++i) put(to + i * kTileRowBytes, widen_pair(four - zeros, 2 * i));
    }
};

}  // namespace GALLEY_ISA
}  // namespace galley
