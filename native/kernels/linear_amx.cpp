// Linear layers on AMX: a tile register holds sixteen rows of 64 bytes, and one instruction
// multiplies sixteen rows of activations by sixteen outputs of weights, 64 bytes deep.
//
// Integers are summed exactly and scaled in the order of linear_int8.cpp: the bits are the same,
// so few rows, which memory bounds, are left to it. bfloat16 adds in an order of its own, for all
// rows, and so do integers that are widened to it.
//
// From the outside in, what is read again lying nearer each time:
//
//   up to 16 blocks of outputs      a unit of work
//     band of up to 512 rows        its sums wait in the second cache
//       chunk of 512 bytes of k     its weights, too: where they are, or unpacked in a panel
//         2 x 16 rows               their chunk stays in the first cache
//           2 blocks
//             part of a group       sums in tile registers
//
// Groups are those of the inputs' scales where inputs are int8, else the weights' own. A chunk is
// several whole groups (parts), or a part of one: with groups of 128 bytes, 4 of them; with one
// group of 2048, its first quarter, whose sums are kept and loaded again for the next.
#include "tables.hpp"
#include "tile.hpp"
#include "tile_weights.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// Of a row of activations, in bytes: so much of 32 rows and of two blocks of weights stays in the
// nearest cache, so much of all weights of an item in the second.
constexpr int64_t kReach = 512;
constexpr int64_t kReachTiles = kReach / kTileRowBytes;
// Groups whose sums wait in the nearest cache to be scaled together.
constexpr int64_t kMostParts = kReachTiles;
// Of weights that are taken once: how far ahead they are fetched.
constexpr int64_t kAhead = 16 << 10;
constexpr int64_t kItemBytes = 1 << 20;  // of whole weights that stay in the second cache
constexpr int64_t kRowsAtOnce = 8;       // whose sums are in registers
// Row tiles whose sums wait in the second cache.
constexpr int64_t kBandTiles = 32;

// What a layer has in its scratch memory, for blocks of an item.
struct Scratch {
    uint8_t panel[kMostBlocks][kReachTiles][kTileBytes];  // weights
    uint8_t sums[kBandTiles][kMostBlocks][kTileBytes];    // of a group that takes several parts
    float scaled[kBandTiles][kMostBlocks][kTileRows * kLanes];  // of all groups so far
};
static_assert(sizeof(Scratch) == kLinearScratch, "see kernels.hpp");

// Columns [begin, end) of one group.
struct Part {
    int64_t group, begin, end;
    bool first, last;  // of its group
};

template <class Weights>
class Layer {
    using Sum = typename Weights::Sum;
    using Tile = Sum[kTileRows * kLanes];
    static constexpr bool kExact = Weights::kWith != Tiles::kBFloat16;

  public:
    Layer(const Linear& l, uint8_t* scratch)
        : l_(l),
          m_(*l.matrix),
          scratch_(*reinterpret_cast<Scratch*>(scratch)),
          group_(kExact ? m_.input_group : m_.group),
          groups_(kExact      ? m_.input_groups
                  : m_.groups ? m_.groups
                              : 1),
          block_bytes_(m_.padded_depth * kTileRowBytes / Weights::kStep),
          row_tiles_(quotient_up(l.rows, kTileRows)),
          height_(quotient_up(l.rows, row_tiles_)),
          copies_(Weights::kUnpacked || groups_ > 1),
          streams_(!copies_ && row_tiles_ <= (kMostBlocks * block_bytes_ > kItemBytes ? 2 : 8)) {
        const int64_t reach = kReachTiles * Weights::kDepth;
        part_ = streams_ ? group_ : least(group_, reach);
        group_parts_ = quotient_up(group_, part_);
        const int64_t last = m_.padded_depth - (groups_ - 1) * group_;
        parts_ = (groups_ - 1) * group_parts_ + quotient_up(last, part_);
        chunk_ = part_ < group_ || part_ > reach ? 1 : kReachTiles / tiles_of(part_);
    }

    // Row tiles are of one height. They overlap where that does not divide the rows, and what two
    // of them write is the same.
    void run(int64_t begin, int64_t end) {
        configure_tiles(height_);
        for (begin_ = begin; begin_ < end; begin_ = end_) {
            end_ = least(begin_ + kMostBlocks, end);
            for (band_ = 0; band_ < row_tiles_; band_ += kBandTiles) {
                const int64_t stop = least(band_ + kBandTiles, row_tiles_);
                for (int64_t part = 0; part < parts_; part += chunk_)
                    for (int64_t tile = band_; tile < stop; tile += 2)
                        tile + 1 < stop ? rows<2>(tile, part) : rows<1>(tile, part);
            }
        }
        _tile_release();
    }

  private:
    // R tiles of rows from number `tile` on, by all blocks of a chunk of parts.
    template <int R>
    void rows(int64_t tile, int64_t part) const {
        const int64_t stop = least(part + chunk_, parts_);
        int64_t block = begin_;
        // Memory is read fastest as one stream of addresses.
        const bool stream = !Weights::kUnpacked && row_tiles_ == 1;
        for (; !stream && block + 2 <= end_; block += 2) tiles<R, 2>(tile, block, part, stop);
        for (; block < end_; ++block) tiles<R, 1>(tile, block, part, stop);
    }

    // R tiles of rows by B blocks. The band's first rows fill the panel for all.
    template <int R, int B>
    void tiles(int64_t tile, int64_t block, int64_t part, int64_t stop) const {
        alignas(64) Tile whole[kMostParts][R][B];
        int64_t rows[R];
        for (int r = 0; r < R; ++r) rows[r] = l_.rows * (tile + r) / row_tiles_;
        Part p;
        for (int64_t i = part; i < stop; ++i) {
            p = part_at(i);
            const int64_t place = (i - part) * tiles_of(part_);
            if (tile == band_) fill_panel<B>(block, p, place);
            Sum* sums[R][B];
            for (int r = 0; r < R; ++r)
                for (int b = 0; b < B; ++b)
                    sums[r][b] =
                        p.first && p.last ? whole[i - part][r][b] : sums_at(tile + r, block + b);
            multiply<R, B>(rows, block, p, place, sums, tile);
        }
        if (!p.last) return;
        const int64_t group = p.group + 1 - (p.first ? stop - part : 1);
        for (int r = 0; r < R; ++r)
            for (int b = 0; b < B; ++b) {
                const Sum* from = p.first ? whole[0][r][b] : sums_at(tile + r, block + b);
                float* scaled = scratch_.scaled[tile + r - band_][block + b - begin_];
                for (int64_t i = 0; i < height_; i += kRowsAtOnce)
                    take<R * B>(rows[r] + i, least(kRowsAtOnce, height_ - i), block + b, group,
                                p.group + 1, from + i * kLanes, scaled + i * kLanes);
            }
    }

    // All rows of a band fetch a share of what its first rows will be the first to read.
    struct Lines {
        int64_t begin, end;

        __attribute__((always_inline)) void fetch_from(const uint8_t* first) const {
            for (int64_t i = begin; i < end; ++i) fetch(first + i * kTileRowBytes);
        }
    };
    Lines share_of(int64_t lines, int64_t tile) const {
        const int64_t shares = quotient_up(least(row_tiles_ - band_, kBandTiles), 2);
        const int64_t number = (tile - band_) / 2;
        return {lines * number / shares, lines * (number + 1) / shares};
    }
    Sum* sums_at(int64_t tile, int64_t block) const {
        return reinterpret_cast<Sum*>(scratch_.sums[tile - band_][block - begin_]);
    }
    static int64_t tiles_of(int64_t depth) { return quotient_up(depth, Weights::kDepth); }

    Part part_at(int64_t index) const {
        const int64_t group = index / group_parts_, number = index % group_parts_;
        const int64_t end = group + 1 < groups_ ? (group + 1) * group_ : m_.padded_depth;
        const int64_t begin = group * group_ + number * part_;
        const bool last = begin + part_ >= end;
        return {group, begin, last ? end : begin + part_, number == 0, last};
    }
    // The group of weights that a group of inputs meets.
    int64_t weights_group(int64_t group) const { return group * group_ / m_.group; }
    const uint8_t* weights_at(int64_t block, int64_t k) const {
        return m_.weights + block * block_bytes_ + k * kTileRowBytes / Weights::kStep;
    }

    template <int B>
    void fill_panel(int64_t block, const Part& p, int64_t place) const {
        GALLEY_UNROLL for (int b = 0; b < B; ++b) {
            uint8_t* to = scratch_.panel[block + b - begin_][copies_ ? place : 0];
            if constexpr (Weights::kUnpacked)
                unpack(block + b, p, to);
            else
                copy(block + b, p, to);
        }
        // The intrinsics for tiles do not say that they read memory (that they write it, they do).
        asm volatile("" ::: "memory");
    }

    // All tiles, or, of weights that are taken from where they are, the one that is cut short;
    // filled up with zeros.
    void copy(int64_t block, const Part& p, uint8_t* to) const {
        const int64_t begin = copies_ ? p.begin : p.end - (p.end - p.begin) % Weights::kDepth;
        const int64_t bytes = (p.end - begin) * kTileRowBytes / Weights::kStep;
        memcpy(to, weights_at(block, begin), bytes);
        memset(to + bytes, 0, tiles_of(p.end - begin) * kTileBytes - bytes);
    }

    // Zero points taken off.
    void unpack(int64_t block, const Part& p, uint8_t* to) const {
        const Bytes zeros = load_offsets(m_, block, weights_group(p.group), Weights::kZero);
        const uint8_t* from = weights_at(block, p.begin);
        constexpr int64_t kLines = Weights::kStep * kTileRows / Weights::kDepth;
        // The columns after this chunk, or those that the next item begins with.
        const int64_t chunk = kReachTiles * Weights::kDepth / Weights::kStep * kTileRowBytes;
        const int64_t last = from + chunk - weights_at(block, m_.padded_depth);
        const int64_t ahead = last < 0 ? chunk : (end_ - begin_ - 1) * block_bytes_ + chunk;
        int64_t k = p.begin;
        for (; k < p.end;
             k += Weights::kStep, from += kTileRowBytes, to += kLines * kTileRowBytes) {
            fetch(from + ahead);
            Weights::unpack(load_bytes(from), zeros, to);
        }
        for (; (k - p.begin) % Weights::kDepth; k += Weights::kStep, to += kLines * kTileRowBytes)
            memset(to, 0, kLines * kTileRowBytes);
    }

    // Products of a part, whose tiles begin at number `place` of the panel.
    template <int R, int B>
    void multiply(const int64_t (&rows)[R], int64_t block, const Part& p, int64_t place,
                  Sum* const (&sums)[R][B], int64_t tile) const {
        const int64_t depth = p.end - p.begin, stride = l_.x.stride;
        const uint8_t* x[R];
        const uint8_t* w[B];
        for (int r = 0; r < R; ++r)
            x[r] = l_.x.data + rows[r] * stride + p.begin * kTileRowBytes / Weights::kDepth;
        for (int b = 0; b < B; ++b)
            w[b] = copies_ ? scratch_.panel[block + b - begin_][place]
                           : weights_at(block + b, p.begin);
        p.first ? zero_sums<R, B>() : load_sums<R, B>(sums, kTileRowBytes);
        const int64_t whole = copies_ ? tiles_of(depth) : depth / Weights::kDepth;
        const Lines share = share_of(kTileRows, tile);
        const int64_t next_item = (end_ - begin_) * block_bytes_;
        for (int64_t left = whole; left > 0; --left) {
            if (streams_) {
                // Of this block and then the next; what all rows share is of the next item.
                const int64_t jump = left * kTileBytes > kAhead ? 0 : (B - 1) * block_bytes_;
                const int64_t ahead = row_tiles_ > 2 ? next_item : kAhead + jump;
                for (int b = 0; b < B; ++b) share.fetch_from(w[b] + ahead);
            }
            multiply_tiles<Weights::kWith, R, B>(x, stride, w);
        }
        if (whole < tiles_of(depth)) {
            for (int b = 0; b < B; ++b) w[b] = scratch_.panel[block + b - begin_][0];
            multiply_tiles<Weights::kWith, R, B>(x, stride, w);
        }
        store_sums<R, B>(sums, kTileRowBytes);
    }

    // The sums of groups [group, end) of a few rows by a block, kTiles tiles apart, scaled and
    // added to those before them; when there are no more they are written. Beyond `count` rows
    // there are none: something is computed, and not written.
    template <int kTiles>
    void take(int64_t row, int64_t count, int64_t block, int64_t group, int64_t end,
              const Sum* sums, float* scaled) const {
        Floats acc[kRowsAtOnce];
        const uint8_t* x = l_.x.data + row * l_.x.stride;
        if constexpr (Weights::kScaled) {
            GALLEY_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) acc[i] =
                group ? load(scaled + i * kLanes) : splat(0.0f);
            for (; group < end; ++group, sums += kTiles * kTileRows * kLanes) {
                const int64_t its = weights_group(group);
                const Floats scales = load_scales(m_, block, its);
                GALLEY_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) {
                    const Floats sum =
                        sum_of(sums + i * kLanes, x + i * l_.x.stride, block, group, i < count);
                    acc[i] = fma(sum, scales, acc[i]);
                }
                if (!m_.minima) continue;
                const Floats least = load_minima(m_, block, its);
                GALLEY_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) if (i < count) acc[i] =
                    fma(inputs_of(x + i * l_.x.stride, group), least, acc[i]);
            }
            if (end < groups_) {
                GALLEY_UNROLL for (int i = 0; i < kRowsAtOnce; ++i)
                    store(scaled + i * kLanes, acc[i]);
                return;
            }
            for (int i = 0; i < count; ++i)
                finish(l_, row + i, block, kExact ? acc[i] : acc[i] * splat(1 / kWidened));
        } else {
            for (int i = 0; i < count; ++i) finish(l_, row + i, block, load(sums + i * kLanes));
        }
    }

    // Of row `x` in a group, with its largest input and without the share of the weights' offset.
    // Where there is no row they are zeros: what the memory happens to hold may be denormal, which
    // takes the CPU long.
    Floats sum_of(const Sum* sums, const uint8_t* x, int64_t block, int64_t group,
                  bool exists) const {
        if constexpr (kExact) {
            if (!exists) return splat(0.0f);
            const Group inputs = input_group(l_, x, group);
            Ints exact = add_largest(load_parts<Ints>(sums), m_.kind, weights_at(block, 0),
                                     largest_input(inputs));
            if constexpr (Weights::kUnpacked)
                exact = exact - load_zeros(m_, block, weights_group(group), Weights::kZero) *
                                    splat_int(static_cast<int16_t>(inputs.largest()));
            else
                exact = exact - splat_int(Weights::kOffset * inputs.sum());
            return to_floats(exact) * splat(inputs.scale());
        } else {
            return exists ? load(sums) : splat(0.0f);
        }
    }

    // The sum of a row's inputs in a group, in the unit of its sums of products.
    Floats inputs_of(const uint8_t* x, int64_t group) const {
        if constexpr (kExact) return splat(input_group(l_, x, group).scaled_sum());
        return splat(load_float(x + l_.x.sums + 4 * group) * kWidened);
    }

    const Linear& l_;
    const Matrix& m_;
    Scratch& scratch_;
    int64_t group_, groups_;  // columns that are scaled together
    int64_t block_bytes_, row_tiles_, height_;
    bool copies_;   // weights that need unpacking, or filling up at the end of each group
    bool streams_;  // whole outputs: few rows take them
    int64_t part_, group_parts_, parts_, chunk_;  // columns, parts of a group, all, at a time
    int64_t begin_ = 0, end_ = 0;                 // blocks at a time
    int64_t band_ = 0;                            // row tiles at a time: the first
};

}  // namespace

void linear_bf16(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) {
    const Kind kind = l.matrix->kind;
    if (kind == Kind::kBF16)
        Layer<BFloat16>(l, scratch).run(begin, end);
    else if (kind == Kind::kInt8)
        Layer<WideInt8>(l, scratch).run(begin, end);
    else
        Layer<WideInt4>(l, scratch).run(begin, end);
}

void linear_int8(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) {
    const bool int4 = l.matrix->kind == Kind::kInt4;
    if (l.rows <= (int4 ? 8 : 4))
        GALLEY_BASE_KERNELS().linear_int8(l, begin, end, scratch);
    else if (int4)
        Layer<Int4>(l, scratch).run(begin, end);
    else
        Layer<Int8>(l, scratch).run(begin, end);
}

}  // namespace GALLEY_ISA
}  // namespace galley
