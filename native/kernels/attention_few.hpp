// What attention_amx.hpp computes, for a few rows, without tiles.
//
// A product of tiles is, by its definition (Intel's Software Developer's Manual, TDPBF16PS), a sum
// over the 16 even elements and one over the 16 odd ones, each fused and in order, that are added
// to each other and then to what was there, with denormal numbers as zeros. Elements that are zero
// change no bit and are left out.
#pragma once

#include "attention_rows.hpp"

namespace galley {
namespace GALLEY_ISA {

constexpr int64_t kTileDepth = 32;  // elements in a row of a tile

struct FewProducts : AttendRows {
    static constexpr int kTogether = 1;  // see VectorProducts
    static constexpr bool kRounds = true;
    static constexpr int kMostRows = 4;

    float* queries;  // [rows][key_columns()]
    float* weights;  // [rows][kSpan]
    float* mixed;    // [rows][padded_value_dim], by this span alone

    explicit FewProducts(const Attend& attend)
        : AttendRows(
              attend, attend.tokens * attend.group,
              reinterpret_cast<float*>(attend.scratch) +
                  attend.tokens * attend.group *
                      (up(attend.cache.key_dim, kLanes) + kSpan + attend.cache.padded_value_dim)),
          queries(reinterpret_cast<float*>(attend.scratch)),
          weights(queries + rows * key_columns()),
          mixed(weights + rows * kSpan) {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t d = 0; d < key_columns(); d += kLanes)
                put(load_some(query(row) + d, cache.key_dim - d) * splat(a.scale),
                    queries + row * key_columns() + d);
    }

    int64_t key_columns() const { return up(cache.key_dim, kLanes); }

    void score_span(int64_t span, int64_t keys) const {
        const NoDenormals none;
        of_all_rows([&](auto count) {
            constexpr int R = decltype(count)::kRows;
            int64_t c = 0;
            for (; c + 3 * kBlockTokens < keys; c += 4 * kBlockTokens) score<R, 4>(span, c);
            for (; c < keys; c += kBlockTokens) score<R, 1>(span, c);
        });
    }

    void put_weights(int64_t row, int64_t, int64_t c, const Floats (&p)[kTogether]) const {
        put(p[0], weights + row * kSpan + c);
    }

    void mix_span(const Softmax& sums, int64_t span, int64_t keys) const {
        {
            const NoDenormals none;
            of_all_rows([&](auto count) {
                constexpr int R = decltype(count)::kRows;
                int64_t d = 0;
                for (; d + 4 * kLanes <= cache.padded_value_dim; d += 4 * kLanes)
                    mix<R, 4>(d, span, keys);
                for (; d < cache.padded_value_dim; d += kLanes) mix<R, 1>(d, span, keys);
            });
        }
        sums.add_span(mixed, shrink);
    }

  private:
    // While there is one, denormal operands and results are zeros.
    class NoDenormals {
      public:
        NoDenormals() : before_(_mm_getcsr()) { set(before_ | 0x8040); }
        ~NoDenormals() { set(before_); }
        NoDenormals(const NoDenormals&) = delete;
        NoDenormals& operator=(const NoDenormals&) = delete;

      private:
        // The compiler moves arithmetic past it, but not the loads and stores around it.
        static void set(unsigned state) {
            asm volatile("" ::: "memory");
            _mm_setcsr(state);
            asm volatile("" ::: "memory");
        }
        unsigned before_;
    };

    template <int R>
    struct Count {
        static constexpr int kRows = R;
    };
    template <int R = kMostRows, class Body>
    void of_all_rows(const Body& body) const {
        if (rows == R)
            body(Count<R>{});
        else if constexpr (R > 1)
            of_all_rows<R - 1>(body);
    }

    // Rounded to bfloat16.
    static void put(Floats x, float* to) {
        uint16_t halves[kLanes];
        store_bf16(halves, x);
        store(to, load_bf16(halves));
    }

    // R rows of x by C registers: what every second of `count` elements adds, by lines that are
    // `stride` apart, from the first or the second on. ahead(i) once for each.
    template <int R, int C, class Ahead>
    GALLEY_INLINE void add(Floats (&sums)[R][C], const float* x, int64_t x_stride,
                           const uint16_t* const (&lines)[C], int64_t stride, int64_t first,
                           int64_t count, const Ahead& ahead) {
        for (int64_t i = first; i < count; i += 2) {
            ahead(i);
            Floats line[C];
            GALLEY_UNROLL for (int c = 0; c < C; ++c) line[c] = load_bf16(lines[c] + i * stride);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const Floats factor = splat(x[r * x_stride + i]);
                GALLEY_UNROLL for (int c = 0; c < C; ++c) sums[r][c] =
                    fma(factor, line[c], sums[r][c]);
            }
        }
    }

    template <int R, int C>
    GALLEY_INLINE void clear(Floats (&sums)[R][C]) {
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int c = 0; c < C; ++c)
            sums[r][c] = splat(0.0f);
    }

    template <int R, int C>
    GALLEY_INLINE void copy(const Floats (&from)[R][C], Floats (&to)[R][C]) {
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int c = 0; c < C; ++c)
            to[r][c] = from[r][c];
    }

    // A tile's sums are added to `all`; body(sums, first) computes those from the first or the
    // second element on.
    template <int R, int C, class Body>
    GALLEY_INLINE void add_tile(Floats (&all)[R][C], const Body& body) {
        Floats sums[R][C], even[R][C];
        clear(sums);
        body(sums, 0);
        copy(sums, even);
        // Out of the registers, which one set of sums fills.
        asm("" : "+m"(even), "+m"(all));
        clear(sums);
        body(sums, 1);
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int c = 0; c < C; ++c)
            all[r][c] = all[r][c] + (even[r][c] + sums[r][c]);
    }

    template <int R, int C>
    static void put_sums(const Floats (&all)[R][C], float* to, int64_t stride) {
        GALLEY_UNROLL for (int r = 0; r < R; ++r) GALLEY_UNROLL for (int c = 0; c < C; ++c)
            store(to + r * stride + c * kLanes, all[r][c]);
    }

    template <int R, int C>
    void score(int64_t span, int64_t column) const {
        const uint16_t* keys[C];
        const uint8_t* next[C];
        for (int c = 0; c < C; ++c) {
            const int64_t at = span + column + c * kBlockTokens;
            keys[c] = reinterpret_cast<const uint16_t*>(piece_of(at));
            next[c] = piece_after(at);
        }
        Floats all[R][C];
        clear(all);
        for (int64_t d = 0; d < cache.key_dim; d += kTileDepth) {
            add_tile(all, [&](Floats(&sums)[R][C], int64_t first) {
                add(sums, queries + d, key_columns(), keys, kLanes, first,
                    least(kTileDepth, cache.key_dim - d),
                    [&](int64_t i) __attribute__((always_inline)) {
                        if (i / 2 % 2 == first)
                            for (int c = 0; c < C; ++c) fetch(next[c] + (i & ~1) * kTileDepth);
                    });
            });
            for (int c = 0; c < C; ++c) {
                keys[c] += kTileDepth * kLanes;
                next[c] += kTileDepth * kLanes * sizeof(uint16_t);
            }
        }
        put_sums(all, scores + column, kSpan);
    }

    template <int R, int C>
    void mix(int64_t d, int64_t span, int64_t keys) const {
        const int64_t padded = cache.padded_value_dim, size = sizeof(uint16_t);
        const int64_t offset = cache.values + d * size;
        Floats all[R][C];
        clear(all);
        for (int64_t t = 0; t < keys; t += kTileDepth)
            add_tile(all, [&](Floats(&sums)[R][C], int64_t first) {
                for (int64_t at = t; at < least(t + kTileDepth, keys); at += kBlockTokens) {
                    const uint16_t* values[C];
                    for (int c = 0; c < C; ++c)
                        values[c] =
                            reinterpret_cast<const uint16_t*>(piece_of(span + at) + offset) +
                            c * kLanes;
                    const uint8_t* next = piece_after(span + at) + offset;
                    add(sums, weights + at, kSpan, values, padded, first,
                        least(kBlockTokens, keys - at),
                        [&](int64_t i) __attribute__((always_inline)) {
                            for (int64_t b = 0; b < C * kLanes * size; b += kLine)
                                fetch(next + i * padded * size + b);
                        });
                }
            });
        put_sums(all, mixed + d, padded);
    }
};

}  // namespace GALLEY_ISA
}  // namespace galley
