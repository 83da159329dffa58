// Linear layers with int8 and int4 weights and int8 activations, summed exactly within a group.
#include "groups.hpp"
#include "tile.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// Prefetches what comes next in memory while a tile computes.
struct Next {
    const uint8_t* at;
    int64_t pace;
};
template <int B>
GALLEY_INLINE void fetch_next(Next& next, int64_t block_bytes) {
    GALLEY_UNROLL for (int b = 0; b < B; ++b) fetch(next.at + b * block_bytes);
    next.at += next.pace;
}

struct Int8 {
    static constexpr Kind kKind = Kind::kInt8;
    static constexpr int64_t kStep = 4;              // k a register of weights holds
    static constexpr int32_t kStored = 128;          // what zero is stored as
    static constexpr int32_t kOffset = kInt8Offset;  // and what it is multiplied as
    static constexpr int kStreamRows = kMaxRows;
    template <int R, int B>
    static constexpr int kChains = 1;

    template <int R, int B>
    GALLEY_INLINE void dot(Ints (&acc)[1][R][B], const uint8_t* w, int64_t block_bytes,
                           const uint8_t* const (&x)[R], int64_t k, int64_t end, Next& next) {
        for (; k < end; k += kStep) {
            fetch_next<B>(next, block_bytes);
            Bytes v[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) v[b] =
                load_bytes(w + b * block_bytes + k * kLanes);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const int32_t four = load_four(x[r] + k);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[0][r][b] =
                    dot_bytes(acc[0][r][b], v[b], four);
            }
        }
    }
};

// Those from -63 to 63, multiplied as 1 to 127.
struct Narrow : Int8 {
    static constexpr int32_t kOffset = 64;

    template <int R, int B>
    GALLEY_INLINE void dot(Ints (&acc)[1][R][B], const uint8_t* w, int64_t block_bytes,
                           const uint8_t* const (&x)[R], int64_t k, int64_t end, Next& next) {
        Bytes moved;
        GALLEY_PARTS moved.p[i] = UintPart{} + (kStored - kOffset) * 0x01010101u;
        for (; k < end; k += kStep) {
            fetch_next<B>(next, block_bytes);
            Bytes v[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) v[b] =
                load_bytes(w + b * block_bytes + k * kLanes) - moved;
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const int32_t four = load_four(x[r] + k);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[0][r][b] =
                    dot_narrow(acc[0][r][b], v[b], four);
            }
        }
    }
};

struct Int4 {
    static constexpr Kind kKind = Kind::kInt4;
    static constexpr int64_t kStep = 8;
    static constexpr int32_t kStored = 8;
    static constexpr int32_t kOffset = 8;
    static constexpr int kStreamRows = 5;
    // Sums that wait for each other: in two chains where one would be waited for.
    template <int R, int B>
    static constexpr int kChains = R * B * kParts <= kDotsInFlight ? 2 : 1;

    template <int B>
    struct Nibbles {
        Bytes low[B], high[B];  // k = 0 to 3 of each lane, and 4 to 7

        GALLEY_INLINE Nibbles load(const uint8_t* w, int64_t block_bytes) {
            Nibbles n;
            GALLEY_UNROLL for (int b = 0; b < B; ++b) {
                const Bytes both = load_bytes(w + b * block_bytes);
                n.low[b] = nibbles(both, 0);
                n.high[b] = nibbles(both, 4);
            }
            return n;
        }
    };

    template <int kSteps, int R, int B>
    GALLEY_INLINE void dot_short(Ints (&acc)[R][B], const uint8_t* w, int64_t block_bytes,
                                 const uint8_t* const (&x)[R], int64_t k, Next& next) {
        NibbleSums sums[R][B] = {};
        // Out of the registers, which these sums fill.
        asm("" : "+m"(acc));
        GALLEY_UNROLL for (int s = 0; s < kSteps; ++s, k += kStep) {
            fetch_next<B>(next, block_bytes);
            const auto n = Nibbles<B>::load(w + k * (kLanes / 2), block_bytes);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const int32_t first = load_four(x[r] + k), second = load_four(x[r] + k + 4);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) {
                    dot_nibbles(sums[r][b], n.low[b], first);
                    dot_nibbles(sums[r][b], n.high[b], second);
                }
            }
        }
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int b = 0; b < B; ++b)
            acc[r][b] = add_sums(acc[r][b], sums[r][b]);
    }

    template <int R, int B>
    GALLEY_INLINE void dot(Ints (&acc)[kChains<R, B>][R][B], const uint8_t* w, int64_t block_bytes,
                           const uint8_t* const (&x)[R], int64_t k, int64_t end, Next& next) {
        if constexpr (kNibbleDots > 0) {
            constexpr int kSteps = kNibbleDots / 2;
            for (; k + kSteps * kStep <= end; k += kSteps * kStep)
                dot_short<kSteps>(acc[0], w, block_bytes, x, k, next);
            for (; k < end; k += kStep) dot_short<1>(acc[0], w, block_bytes, x, k, next);
        } else {
            for (; k < end; k += kStep) {
                fetch_next<B>(next, block_bytes);
                const auto n = Nibbles<B>::load(w + k * (kLanes / 2), block_bytes);
                GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                    const int32_t first = load_four(x[r] + k), second = load_four(x[r] + k + 4);
                    constexpr int kLast = kChains<R, B> - 1;
                    GALLEY_UNROLL for (int b = 0; b < B; ++b) {
                        dot_nibbles(acc[0][r][b], n.low[b], first);
                        dot_nibbles(acc[kLast][r][b], n.high[b], second);
                    }
                }
            }
        }
    }
};

template <class Weights>
struct Integer {
    template <int R, int B>
    struct Tile {
        static void run(const Linear& l, int64_t row, int64_t block, const Ahead& ahead) {
            const Matrix& m = *l.matrix;
            const int64_t block_bytes = m.padded_depth * 4 * kLanes / Weights::kStep;
            const uint8_t* w = m.weights + block * block_bytes;
            const uint8_t* x[R];
            Next next{ahead.from(w, block_bytes), ahead.pace};
            Floats acc[R][B];
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                x[r] = l.x.data + (row + r) * l.x.stride;
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = splat(0.0f);
            }
            for (int64_t g = 0, i = 0; g < m.groups; ++g) {
                const int64_t end = g + 1 < m.groups ? (g + 1) * m.group : m.padded_depth;
                for (int64_t begin = g * m.group; begin < end; begin += m.input_group, ++i) {
                    constexpr int kChains = Weights::template kChains<R, B>;
                    Ints dots[kChains][R][B];
                    start(l, x, block, g, i, dots);
                    // Out of the registers during the loop below, whose values GCC 12 spills else.
                    if constexpr (R * B > kMixedRows * kBlocks) asm("" : "+m"(acc));
                    const int64_t stop = begin + m.input_group < end ? begin + m.input_group : end;
                    Weights::dot(dots, w, block_bytes, x, begin, stop, next);
                    if constexpr (kChains == 2)
                        GALLEY_UNROLL for (int r = 0; r < R; ++r)
                            GALLEY_UNROLL for (int b = 0; b < B; ++b) dots[0][r][b] =
                                dots[0][r][b] + dots[1][r][b];
                    scale(l, x, w, block, g, i, dots[0], acc);
                    if (m.minima) add_minima(l, x, block, g, i, acc);
                }
            }
            GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int b = 0; b < B; ++b)
                finish(l, row + r, block + b, acc[r][b]);
        }

        // Adds the sums of input group `i`, which lies in group `g`.
        GALLEY_INLINE void scale(const Linear& l, const uint8_t* const (&x)[R], const uint8_t* w,
                                 int64_t block, int64_t g, int64_t i, const Ints (&dots)[R][B],
                                 Floats (&acc)[R][B]) {
            const int64_t block_bytes = l.matrix->padded_depth * 4 * kLanes / Weights::kStep;
            Floats scales[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) scales[b] =
                load_scales(*l.matrix, block + b, g);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Group group = input_group(l, x[r], i);
                const Floats unit = splat(group.scale());
                const Largest largest = largest_input(group);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) {
                    const Ints all =
                        add_largest(dots[r][b], Weights::kKind, w + b * block_bytes, largest);
                    acc[r][b] = fma(to_floats(all) * unit, scales[b], acc[r][b]);
                }
            }
        }

        GALLEY_INLINE void add_minima(const Linear& l, const uint8_t* const (&x)[R], int64_t block,
                                      int64_t g, int64_t i, Floats (&acc)[R][B]) {
            Floats least[B];
            GALLEY_UNROLL for (int b = 0; b < B; ++b) least[b] =
                load_minima(*l.matrix, block + b, g);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Floats sum = splat(input_group(l, x[r], i).scaled_sum());
                GALLEY_UNROLL for (int b = 0; b < B; ++b) acc[r][b] = fma(sum, least[b], acc[r][b]);
            }
        }

        // What the largest input of the group contributes. The weights are stored with an offset,
        // int4 that have minima without; -offset * sum(x) takes its share out again.
        template <int kChains>
        GALLEY_INLINE void start(const Linear& l, const uint8_t* const (&x)[R], int64_t block,
                                 int64_t g, int64_t i, Ints (&dots)[kChains][R][B]) {
            const Matrix& m = *l.matrix;
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Group group = input_group(l, x[r], i);
                GALLEY_UNROLL for (int b = 0; b < B; ++b) {
                    Ints& first = dots[0][r][b];
                    if (m.zeros)
                        first = load_uint8(m.zeros + group_at(m, block + b, g)) *
                                splat_int(-group.sum());
                    else if (Weights::kKind == Kind::kInt4 && m.minima)
                        first = splat_int(0);
                    else
                        first = splat_int(-Weights::kOffset * group.sum());
                    if constexpr (Weights::kOffset != Weights::kStored) {
                        constexpr int32_t kRest = Weights::kStored - Weights::kOffset;
                        first = first - splat_int(kRest * static_cast<int16_t>(group.largest()));
                    }
                    if constexpr (kChains == 2) dots[1][r][b] = splat_int(0);
                }
            }
        }
    };
};

template <class Weights>
void run(const Linear& l, int64_t begin, int64_t end) {
    // Two in a cycle need ten sums in flight, which a block of eight rows does not have.
    if (starts_two_dots())
        return Tiler<Integer<Weights>::template Tile, kMaxRows, Int4::kStreamRows, kBlocks>::run(
            l, begin, end, many_mixed_rows());
    Tiler<Integer<Weights>::template Tile, kMaxRows, Weights::kStreamRows, kBlocks>::run(
        l, begin, end, many_mixed_rows());
}

}  // namespace

void linear_int8(const Linear& l, int64_t begin, int64_t end, uint8_t*) {
    if (l.matrix->kind == Kind::kInt4) return run<Int4>(l, begin, end);
    if constexpr (kNarrowGains)
        if (l.matrix->narrow) return run<Narrow>(l, begin, end);
    run<Int8>(l, begin, end);
}

}  // namespace GALLEY_ISA
}  // namespace galley
