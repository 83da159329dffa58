// A model as a list of ops over one arena, run in one call.
#pragma once

#include <memory>
#include <vector>

#include "attention.hpp"
#include "ops.hpp"
#include "runtime.hpp"

namespace galley {

// KV blocks of several sequences or windows: number s has those from `starts[s]` to `starts[s +
// 1]`.
struct Tables {
    const int64_t* blocks;
    const int64_t* starts;

    const int64_t* of(int64_t s) const { return blocks + starts[s]; }
    int64_t size(int64_t s) const { return starts[s + 1] - starts[s]; }
};

// One step; see galley.ops.executor.Batch.
struct Step {
    const int64_t* tokens;
    const int64_t* positions;
    int64_t rows;
    const int64_t* starts;
    int64_t sequences;
    Tables tables;  // of all sequences for KV group 0, then for group 1, ...
    const int64_t* wanted;
    int64_t wanted_rows;
    float* logits;
    // Of each sequence's window the encoder's rows in the cache, and their number; null for text.
    Tables cross_tables;
    const int64_t* cross_rows;
    // Of an aligner: its weights, [rows][aligned_heads()][attention_rows], and no logits. What lies
    // beyond a window's rows is not written.
    float* attention;
    int64_t attention_rows;
};

// Windows to encode; see galley.ops.executor.Windows. `frames` is [starts[windows]][mels].
struct Windows {
    const float* frames;
    const int64_t* starts;
    int64_t windows;
    Tables tables;
};

class Program {
  public:
    // `arena_bytes` for each row of a step, or frame of its windows.
    Program(std::shared_ptr<Runtime> runtime, int64_t arena_bytes, int64_t vocab_size);

    // Attention's layer must be there already.
    void append(Op op);

    // Both throw std::invalid_argument, before anything is computed, for what does not fit
    // together.
    void forward(const Step& step);
    // Of a program that begins with FeaturesOp.
    void encode(const Windows& windows);

    const Kernels& kernels() const { return kernels_; }
    int64_t vocab_size() const { return vocab_size_; }
    int64_t aligned_heads() const { return aligned_heads_; }
    int64_t kv_groups() const { return runtime_->kv_groups(); }
    int64_t mels() const { return mels_; }

  private:
    struct Angles {
        std::vector<float> inv_freq;
        float scale;
        std::vector<float> cos, sin;  // [rows][inv_freq]
    };
    // What the kinds of attention share.
    struct Attention {
        const Cache& cache;
        const Tables& tables;
        AttentionPlan& plan;
        int64_t heads;
        float scale;
        int64_t window;
        Slot q, y;
    };
    void check(const Step& step) const;
    void check_cross(const Step& step) const;
    void check(const Windows& windows) const;
    void check_blocks(const Tables& tables, int64_t count) const;
    // The sequences' tables in the KV group of a layer.
    Tables tables_of(int64_t layer) const;
    int64_t encoded_rows(int64_t frames) const;
    void begin(const Step& step);
    void begin(const Windows& windows);
    void take_rows(int64_t rows);
    void take_windows();
    void plan_cross_attention();
    void turn_angles();
    void run_ops();
    uint8_t* at(const Slot& slot) const;
    float* row(const Slot& slot, int64_t r) const;
    void need_attention_scratch(const Cache& cache, int64_t heads);
    // body(r, thread) for every row; `width` floats of work each.
    template <class Body>
    void each_row(int64_t width, const Body& body) {
        // Less work than this, in floats, is not worth waking another thread for.
        constexpr int64_t kShareFrom = 16384;
        const int64_t grain = kShareFrom > width ? kShareFrom / width : 1;
        pool_.run(rows_, grain, [&](int64_t begin, int64_t end, int thread) {
            for (int64_t r = begin; r < end; ++r) body(r, thread);
        });
    }
    template <class Body>
    void each_row_prepared(const SharedLayout& layout, int64_t width, const Slot& y,
                           const Body& body);

    void run(const EmbedOp& op);
    void run(const PrepareOp& op);
    void run(const LinearOp& op);
    void run(const NormOp& op);
    void run(const AddNormOp& op);
    void run(const RopeOp& op);
    void run(const AttentionOp& op);
    void run(const RopeAttentionOp& op);
    void run(const SiluMulOp& op);
    void run(const GeluOp& op);
    void run(const AddOp& op);
    void run(const SelectRowsOp& op);
    void run(const FeaturesOp& op);
    void run(const NeighboursOp& op);
    void run(const EmbedPositionsOp& op);
    void run(const WindowAttentionOp& op);
    void run(const CrossKvOp& op);
    void run(const CrossAttentionOp& op);
    void run(const CrossWeightsOp& op);
    void normalise(const NormOp& op, const float* x, float* y) const;
    int angles_for(const std::vector<float>& inv_freq, float scale);
    void turn(int angles, int64_t r, const float* x, int64_t width, float* y) const;
    void write_kv(const Cache& cache, const Tables& tables, int64_t r, const float* k,
                  const float* v) const;
    void write_all_kv(const Cache& cache, const Tables& tables, const Slot& k, const Slot& v);
    void fill_pairs(const Cache& cache, const Tables& tables);
    void attend_own(const AttentionOp& op);
    void attend_all(const Attention& attention);
    Attend attend(const Attention& attention, const AttentionItem& item, int thread) const;
    Attend attend_head(const CrossWeightsOp& op, int64_t place, int64_t sequence, int64_t first_row,
                       int thread) const;

    std::shared_ptr<Runtime> runtime_;
    const Kernels& kernels_;
    Pool& pool_;
    int64_t arena_bytes_, vocab_size_;
    int64_t token_limit_ = INT64_MAX;     // ids below it have a row in every embedding
    int64_t position_limit_ = INT64_MAX;  // as ids, of positions
    int64_t mels_ = 0;                    // of an encoder
    bool crosses_ = false;                // whether there is cross-attention
    int64_t aligned_heads_ = 0;           // whose weights are the result
    std::vector<int64_t> strides_;        // of an encoder's convolutions
    std::vector<Op> ops_;
    std::vector<Angles> angles_;

    // The step in progress. An encoder's windows stand there as sequences, with starts and
    // positions of the buffers in use.
    Step step_{};
    const float* frames_ = nullptr;
    std::vector<int64_t> window_starts_, finer_starts_, window_positions_;
    uint8_t* arena_ = nullptr;
    int64_t arena_rows_ = 0;
    int64_t rows_ = 0;  // of the buffers in use; changes at select_rows and neighbours
    std::vector<int64_t> sequence_of_;
    AttentionPlan plan_, cross_plan_;
    // WindowAttentionOp's tables: all windows' blocks one after another.
    std::vector<int64_t> window_blocks_, window_block_starts_;
    std::vector<float> zeros_;
};

}  // namespace galley
