// What the kernels are given, and the table of them that each instruction set fills.
//
// This header is compiled under the flags of every instruction set, so its functions are static:
// the linker must not take one set's for another's.
#pragma once

#include <stdint.h>

namespace galley {

constexpr int kLanes = 16;           // outputs of a linear layer that share a register
constexpr int kBlockTokens = 16;     // tokens in a KV block
constexpr int64_t kRowBlock = 1024;  // logits that are added up by themselves
constexpr int kWeightBits = 30;      // the greatest logit weighs 2 ** kWeightBits

enum class Kind : int32_t { kF32, kBF16, kF16, kInt8, kInt4 };
// kNested, of scales and minima alone: an int8 for each group, and a float16 for each kSuper
// columns.
enum class FloatType : int32_t { kF32, kBF16, kF16, kNested };
constexpr int64_t kSuper = 256;

// A weight matrix [outputs, depth] in tiles of 16 outputs; `blocks` = outputs / 16, rounded up.
//
//   kF32   [blocks][depth][16]
//   kBF16  [blocks][depth / 2][16][2]
//   kF16   [blocks][depth][16]
//   kInt8  [blocks][depth / 4][16][4], unsigned: weight + 128; if `narrow`, all are from -63 to 63
//   kInt4  [blocks][depth / 8][64 bytes]: byte 4 * output + j holds k = j below, k = 4 + j above;
//          unsigned: weight + zero point (8 when there are neither `zeros` nor `minima`)
//
// Integer kinds have one scale for each (block, group of `group` k, output), and optionally one
// minimum, which is added to each product of weight and scale, or kInt4 a zero point below 16. The
// last group may be shorter; padding holds zeros. Those that are kNested are the products of the
// group's int8 and of a float16 of `super_scales` and `super_minima`, one for each
// (block, kSuper k, output).
//
// Of int8 inputs `input_group` columns, a group or a part of one, share a scale.
struct Matrix {
    Kind kind;
    FloatType scale_type;
    bool narrow;
    int64_t outputs;
    int64_t depth;
    int64_t padded_depth;
    int64_t group;
    int64_t groups;
    int64_t input_group;
    int64_t input_groups;
    const uint8_t* weights;
    const uint8_t* scales;
    const uint8_t* zeros;
    const uint8_t* minima;
    int64_t supers;
    const uint8_t* super_scales;
    const uint8_t* super_minima;
};

static inline bool is_integer(Kind kind) { return kind == Kind::kInt8 || kind == Kind::kInt4; }

// What a Matrix is multiplied with: floats always; bfloat16 unless it is kF32 or kF16; int8 if it
// is of integers itself.
enum class Inputs : int32_t { kFloats, kBF16, kInt8 };

// Activations; rows are `stride` bytes apart.
//
//   kFloats  [depth] floats, as they are
//   kBF16    [padded_depth] bfloat16, then zeros: up to a multiple of 64 bytes, and for integers 64
//            bytes more, as a group, and so a tile, may begin at any multiple of 16, and then at
//            `sums` [groups] floats: the sum of each group
//   kInt8    [padded_depth] int8, then at `sums` [input_groups] InputGroup
struct Activations {
    const uint8_t* data;
    int64_t stride;
    int64_t sums;
    Inputs type;
};

// What a row of kInt8 has beside the integers of an input group. The largest input of a group has
// 16 bits: it is here, and zero among the group's int8, whose scale is that of the second largest.
struct InputGroup {
    int32_t sum;       // of all integers, the largest included
    float scale;       // what an integer stands for
    float scaled_sum;  // what the sum stands for
    int32_t largest;   // the lower 16 bits of the largest input's integer
    // Where the weights of its column lie: bytes from the start of a block, and in a lane's 32
    // bits.
    int32_t line;
    int32_t shift;
};

// Columns of a row of kBF16, zeros included.
static inline int64_t bf16_columns(const Matrix& m) {
    constexpr int64_t kLine = 32;
    return (m.padded_depth + kLine - 1) / kLine * kLine + (is_integer(m.kind) ? kLine : 0);
}

struct Linear {
    const Matrix* matrix;
    Activations x;
    const float* bias;  // null, or [blocks * 16]
    float* y;
    int64_t y_stride;  // floats
    int64_t rows;
};

// Rows times a thin matrix of floats, float16 or bfloat16: y = scale * x W^T, which `adds` to what
// is in y. Strides are in floats.
struct LowRank {
    const Matrix* matrix;
    const float* x;
    int64_t x_stride;
    float* y;
    int64_t y_stride;
    int64_t rows;
    float scale;
    bool adds;
};

// kPairs: bfloat16 whose products are taken two at a time. Not for the paged cache: a token's
// values are next to its neighbor's, which must be finite.
enum class KvType : int32_t { kF32, kBF16, kInt8, kInt4, kPairs };

// One layer's cache: [blocks][kv_heads] pieces of `head_bytes`, each of them
//
//   keys    [key_dim][16]: they lie across tokens, so that 16 tokens fill a register
//   values  [16][padded_value_dim], `values` bytes behind
//   scales  [2][16] floats, `scales` bytes behind, for kInt8 alone: what an integer of a token's
//           key and of its value stands for
//
// Where values are `shared`, they are the first `value_dim` columns of keys and lie nowhere else.
// The second scale is then of a key's other columns, from `cut` on.
//
// Of kPairs keys are [key_dim / 2][16][2] and values [8][padded_value_dim][2].
//
// kInt4 has integers n from 0 to 15, two in a byte, that stand for low + scale * n
// (galley/ops/reference_kv.py):
//
//   keys    [key_dim / 2][16] bytes: of a token, an even column (low half) and the next one
//   values  [16][padded_value_dim / 2] bytes: of sixteen columns, the first eight (low halves) and
//           the last eight
//   scales  [4][16] bfloat16: of a token's key scale and low, of its value (or from `cut` on) scale
//           and low
//
// Keys are divided by `factors` before they are rounded, and queries multiplied.
struct Cache {
    uint8_t* data;
    KvType type;
    int64_t kv_heads;
    int64_t key_dim;
    int64_t value_dim;
    int64_t padded_value_dim;  // value_dim rounded up to 16
    bool shared;
    int64_t cut;  // columns of a key with the first scale: all, or value_dim rounded up to 2
    int64_t values;
    int64_t scales;
    int64_t head_bytes;
    const float* factors;  // [kv_heads][key_dim] powers of two; null: 1. For kInt4 alone
};

// Which keys up to its own a token sees: all, if `window` is 0, or the last so many, or if it is
// `chunked` those from the last multiple of it on.
struct Reach {
    int64_t window;
    bool chunked;
};
static inline int64_t first_key(const Reach& reach, int64_t position) {
    if (!reach.window) return 0;
    if (reach.chunked) return position / reach.window * reach.window;
    return position >= reach.window ? position - reach.window + 1 : 0;
}

// Rows of one sequence, or of one encoder input, against one KV head: `tokens` consecutive tokens,
// `group` query heads each.
struct Attend {
    Cache cache;
    int64_t kv_head;
    const float* q;  // first token's first head of the group
    float* out;
    int64_t q_stride, out_stride;  // floats between tokens
    const int64_t* table;
    int64_t keys;   // that there are; 0: those up to the last token's position
    int64_t first;  // position of the first token, if keys is 0 or there is a window
    int64_t tokens;
    int64_t group;
    // A token sees what is in reach of the position that is `after` its own; without a window, if
    // keys is not 0, all.
    Reach reach;
    int64_t after;
    float scale;
    float cap;           // 0: none; or scores s become cap * tanh(s / cap)
    const float* sinks;  // null, or a score for each head of the group, which no value belongs to
    uint8_t* scratch;    // attend_scratch() bytes, 64-byte aligned
};

// One token of a recurrence of one head over columns of its state S [key_dim][width], whose rows
// lie `stride` floats apart:
//
//   S = decay * S + k (beta * (v - delta * (decay * S)^T k))^T,  y = S^T q + skip * v
//
// `delta` is 0 (Mamba-2, arXiv:2405.21060) or 1 (the gated delta rule, arXiv:2412.06464). The state
// is read from `from` (null: zeros) and written to `to`, which may be the same; both have whole
// vectors of columns.
struct Recurrence {
    const float* from;
    float* to;
    int64_t stride, key_dim, width;
    const float *q, *k, *v;
    float* y;
    float decay, beta, skip;
    bool delta;
};

// Columns of one row of a causal convolution, each of its own channel, then silu: `rows` has its
// `size` inputs, the oldest first; weights are [size][stride].
struct CausalConv {
    const float* const* rows;
    const float* weights;
    const float* bias;  // null: none
    float* y;
    int64_t size, stride, width;
};

// An op that computes y[i] from a[i] and, depending on the op, b[i] or a number.
struct Elementwise {
    const char* name;
    int inputs;
    bool told;
    int64_t work;  // relative to a copy's: when another thread is worth waking
    void (*run)(const float* a, const float* b, float number, int64_t width, float* y);
};

struct Kernels {
    // Null if there is none of that name.
    const Elementwise* elementwise_named(const char* wanted) const;

    const char* name;
    // A linear layer: blocks [begin, end) of the outputs for all rows, one kernel for each type of
    // inputs, between which `linear` chooses. A row's bits depend on nothing but the row.
    // `scratch`: kLinearScratch bytes, 64-byte aligned.
    void (*linear_float)(const Linear&, int64_t begin, int64_t end, uint8_t* scratch);
    void (*linear_bf16)(const Linear&, int64_t begin, int64_t end, uint8_t* scratch);
    void (*linear_int8)(const Linear&, int64_t begin, int64_t end, uint8_t* scratch);
    void linear(const Linear&, int64_t begin, int64_t end, uint8_t* scratch) const;
    // An adapter's factor, on few rows. A row's bits depend on nothing but the row.
    void (*low_rank)(const LowRank&);
    // One row of floats -> one row of Activations for `matrix`, not kFloats.
    void (*quantize_input)(const Matrix& matrix, Inputs, const float* x, uint8_t* row,
                           int64_t sums);
    // Row `index` of the matrix as floats.
    void (*embed)(const Matrix& matrix, int64_t index, float* y);
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t width, int64_t group,
                     float* y);
    // Weights and bias (null: none) are as wide as the row.
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps,
                       int64_t width, int64_t group, float* y);
    // cos and sin: [pairs]; columns of a head from 2 * pairs on stay as they are. A pair is a
    // column of the first half of those before and that of the second, or neighbors.
    void (*rope)(const float* x, const float* cos, const float* sin, int64_t pairs, int64_t width,
                 int64_t head_dim, float* y);
    void (*rope_adjacent)(const float* x, const float* cos, const float* sin, int64_t pairs,
                          int64_t width, int64_t head_dim, float* y);
    const Elementwise* elementwise;  // the last one has no name
    void (*write_kv)(const Cache&, const float* k, const float* v, int64_t block, int64_t slot);
    // The same for a block's 16 tokens, whose rows lie a stride apart.
    void (*write_kv_block)(const Cache&, const float* k, int64_t k_stride, const float* v,
                           int64_t v_stride, int64_t block);
    // The rows' results from all keys that they may see: chunk by chunk, merged in order.
    void (*attend)(const Attend&);
    // The same bits in two steps, for threads to share: what one chunk contributes,
    // partial_floats() of them, and all chunks' contributions, in order, which are overwritten.
    void (*attend_chunk)(const Attend&, int64_t chunk, float* partial);
    void (*merge_chunks)(const Attend&, float* partials, int64_t count);
    // The softmax alone, of one query head a token: weights of `keys` keys for each to `out`.
    void (*attention_weights)(const Attend&);
    void (*recur)(const Recurrence&);
    void (*causal_conv)(const CausalConv&);
    // The ids of those of x[n] that are not <= bar, ascending; returns how many.
    int64_t (*find_above)(const float* x, int64_t n, float bar, int64_t* ids);
    // The softmax of logits x[n], none above `most`, as integers (galley/ops/draws.py): not
    // normalized; returns their sum.
    int64_t (*softmax_weights)(const float* x, int64_t n, float most, float scale,
                               int32_t* weights);
    // Sum of exp(x - most) over x[n], none of which is above `most`.
    double (*sum_exp)(const float* x, int64_t n, double most);
    // Nothing but products in registers, for measuring; they return the operations done.
    int64_t (*multiply_int8)(int64_t steps);
    int64_t (*multiply_bf16)(int64_t steps);
    int64_t (*multiply_f32)(int64_t steps);
    // Nothing but loads; `bytes` is a multiple of 256.
    void (*read)(const uint8_t* data, int64_t bytes);
};

// How many blocks of outputs one unit of work of `linear` has: at least, and at most.
constexpr int64_t kBlocksPerItem = 4;
constexpr int64_t kMostBlocks = 16;
constexpr int64_t kLinearScratch = 1152 << 10;
// Most rows (tokens * group) of one Attend, unless the group alone is larger.
constexpr int64_t kAttendRows = 64;
// Keys, counted from the start of a context, that have a softmax of their own.
constexpr int64_t kChunk = 512;
constexpr int64_t kSpan = 64;  // of these share one update of the running maximum

// Chunks [first, last] of the keys that tokens may see. `first` is the last key that the first of
// them sees, `last` that of the last one.
static inline int64_t first_chunk(const Reach& reach, int64_t first) {
    return first_key(reach, first) / kChunk;
}
static inline int64_t last_chunk(int64_t last) { return last / kChunk; }

// For each row of a chunk: the weighted sum of values, a sum of weights for each lane, and the
// greatest score; whole cache lines.
static inline int64_t partial_floats(int64_t rows, int64_t padded_value_dim) {
    return (rows * (padded_value_dim + kLanes + 1) + kLanes - 1) / kLanes * kLanes;
}
// Of all instruction sets: AMX takes whole tiles of rows and dimensions.
static inline int64_t attend_scratch(int64_t rows, const Cache& cache) {
    const int64_t some = (rows + 15) / 16 * 16;
    const int64_t dims = (cache.key_dim + 31) / 32 * 32 + (cache.padded_value_dim + 31) / 32 * 32;
    const int64_t floats = some * (dims + 2 * kSpan + 3) + kSpan * dims / 2 +
                           2 * partial_floats(rows, cache.padded_value_dim);
    return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace galley
