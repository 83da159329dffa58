// What a program consists of: ops on buffers of one arena.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "packed.hpp"

namespace galley {

// Where a buffer lives. The arena of a step with T rows is T times the planned one, so a buffer
// begins at offset * T, its rows are `stride` bytes apart and it has those from `column` bytes into
// each row on. `kLogits` is the caller's array.
struct Slot {
    static constexpr int64_t kLogits = -1;
    int64_t offset;
    int64_t stride;
    int64_t column;
};

using Weights = std::shared_ptr<const Packed>;
using SharedLayout = std::shared_ptr<const InputLayout>;

struct EmbedOp {
    Weights weight;
    int64_t width;
    Slot y;
};
struct PrepareOp {
    SharedLayout layout;
    Slot x, y;
};
struct LinearOp {
    Weights weight;
    std::vector<float> bias;  // empty, or padded to whole blocks
    SharedLayout layout;      // of x; null: floats
    Slot x, y;
};
struct NormOp {
    std::vector<float> weight;
    std::vector<float> bias;  // a layer norm's; empty for an RMS norm
    float eps;
    int64_t width;
    SharedLayout layout;  // of y; null: floats
    Slot x, y;
};
struct AddNormOp {
    Slot a, b;
    NormOp norm;  // of the sum
};
struct RopeOp {
    std::vector<float> inv_freq;
    float scale;
    int64_t width;
    int angles;  // which table of the step
    Slot x, y;
};
struct AttentionOp {
    int64_t layer, heads;
    float scale;
    int64_t window;
    Slot q, k, v, y;
};
struct RopeAttentionOp {
    std::vector<float> inv_freq;
    float rope_scale;
    int angles;             // as RopeOp's
    Slot q;                 // not turned yet
    AttentionOp attention;  // of the turned q; k is not turned yet
};
struct SiluMulOp {
    int64_t width;
    SharedLayout layout;  // as NormOp's
    Slot a, b, y;
};
struct GeluOp {
    int64_t width;
    SharedLayout layout;  // as NormOp's
    Slot x, y;
};
struct AddOp {
    int64_t width;
    Slot a, b, y;
};
struct SelectRowsOp {
    int64_t width;
    Slot x, y;
};

// Of speech models; see galley.graph.signatures.
struct FeaturesOp {
    int64_t width;
    Slot y;
};
struct NeighboursOp {
    int64_t width, size, stride;
    Slot x, y;
};
struct EmbedPositionsOp {
    std::vector<float> weight;  // [positions][width]
    int64_t width;
    Slot y;
};
struct WindowAttentionOp {
    Cache cache;  // of one layer's keys and values while it runs; its data is Runtime's
    int64_t heads;
    float scale;
    Slot q, k, v, y;
};
struct CrossKvOp {
    int64_t layer;
    Slot k, v;
};
struct CrossAttentionOp {
    int64_t layer, heads;
    float scale;
    Slot q, y;
};
struct CrossWeightsOp {
    int64_t layer, heads;
    std::vector<int64_t> chosen;  // of the heads
    int64_t first;                // place of their weights in the result
    float scale;
    Slot q;
};

using Op =
    std::variant<EmbedOp, PrepareOp, LinearOp, NormOp, AddNormOp, RopeOp, AttentionOp,
                 RopeAttentionOp, SiluMulOp, GeluOp, AddOp, SelectRowsOp, FeaturesOp, NeighboursOp,
                 EmbedPositionsOp, WindowAttentionOp, CrossKvOp, CrossAttentionOp, CrossWeightsOp>;

}  // namespace galley
