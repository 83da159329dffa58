// A model as a list of ops over one arena, run in one call.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "attention.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "packed.hpp"
#include "pool.hpp"

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

struct EmbedOp {
    Weights weight;
    int64_t width;
    Slot y;
};
struct PrepareOp {
    Weights weight;
    Slot x, y;
};
struct LinearOp {
    Weights weight;
    std::vector<float> bias;  // empty, or padded to whole blocks
    Slot x, y;
};
struct RmsNormOp {
    std::vector<float> weight;
    float eps;
    int64_t width;
    Weights layout;  // null: y is floats; else prepared for these
    Slot x, y;
};
struct AddRmsNormOp {
    Slot a, b;
    RmsNormOp norm;  // of the sum
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
    Weights layout;  // as RmsNormOp's
    Slot a, b, y;
};
struct AddOp {
    int64_t width;
    Slot a, b, y;
};
struct SelectRowsOp {
    int64_t width;
    Slot x, y;
};
using Op = std::variant<EmbedOp, PrepareOp, LinearOp, RmsNormOp, AddRmsNormOp, RopeOp, AttentionOp,
                        RopeAttentionOp, SiluMulOp, AddOp, SelectRowsOp>;

// One step; see galley.ops.executor.Batch. `tables` holds all sequences' blocks,
// `table_starts` where each begins.
struct Step {
    const int64_t* tokens;
    const int64_t* positions;
    int64_t rows;
    const int64_t* starts;
    int64_t sequences;
    const int64_t* tables;
    const int64_t* table_starts;
    const int64_t* wanted;
    int64_t wanted_rows;
    float* logits;
};

class Program {
  public:
    // `arena_bytes` for each row of a step.
    Program(const Kernels& kernels, int threads, const std::vector<int>& cpus, int64_t arena_bytes,
            int64_t vocab_size);

    void append(Op op);
    void add_kv_layer(int64_t kv_heads, int64_t head_dim, KvType type);
    int64_t kv_bytes_per_block() const;
    void allocate_kv(int64_t blocks);

    // Throws std::invalid_argument, before anything is computed, for a step that does not fit
    // together.
    void forward(const Step& step);

    int64_t vocab_size() const { return vocab_size_; }
    const char* isa() const { return kernels_.name; }

  private:
    struct Layer {
        Cache cache;
        Memory memory;
        int64_t block_bytes() const { return cache.kv_heads * cache.head_bytes; }
    };
    struct Angles {
        std::vector<float> inv_freq;
        float scale;
        std::vector<float> cos, sin;  // [rows][inv_freq]
    };
    void check(const Step& step) const;
    void begin(const Step& step);
    uint8_t* at(const Slot& slot) const;
    float* row(const Slot& slot, int64_t r) const;
    uint8_t* scratch(int thread) const { return scratch_.data() + thread * scratch_bytes_; }
    void need_scratch(int64_t bytes);
    void need_attention_scratch(const AttentionOp& op);
    template <class Body>
    void each_row(int64_t width, const Body& body);
    template <class Body>
    void each_row_prepared(const Weights& layout, int64_t width, const Slot& y, const Body& body);

    void run(const EmbedOp& op);
    void run(const PrepareOp& op);
    void run(const LinearOp& op);
    void run(const RmsNormOp& op);
    void run(const AddRmsNormOp& op);
    void run(const RopeOp& op);
    void run(const AttentionOp& op);
    void run(const RopeAttentionOp& op);
    void run(const SiluMulOp& op);
    void run(const AddOp& op);
    void run(const SelectRowsOp& op);
    int angles_for(const std::vector<float>& inv_freq, float scale);
    void turn(int angles, int64_t r, const float* x, int64_t width, float* y) const;
    void write_kv(const Cache& cache, int64_t r, const float* k, const float* v) const;
    void attend_all(const AttentionOp& op);
    Attend attend(const AttentionOp& op, const AttentionItem& item, int thread) const;

    const Kernels& kernels_;
    Pool pool_;
    int64_t arena_bytes_, vocab_size_;
    int64_t token_limit_ = INT64_MAX;  // ids below it have a row in every embedding
    std::vector<Op> ops_;
    std::vector<Layer> layers_;
    std::vector<Angles> angles_;
    int64_t blocks_ = 0;

    // Grown to the largest step so far; a step that is no larger allocates nothing.
    Memory arena_, scratch_, partials_;
    int64_t scratch_bytes_ = 0;  // a thread's share
    std::vector<int64_t> sequence_of_;
    AttentionPlan plan_;

    // The step in progress.
    Step step_{};
    int64_t rows_ = 0;  // of the buffers in use; changes at select_rows
};

}  // namespace galley
