// A model as a list of ops over one arena, run in one call.
#pragma once

#include <memory>
#include <vector>

#include "attention.hpp"
#include "ops.hpp"
#include "runtime.hpp"

namespace galley {

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
    Program(std::shared_ptr<Runtime> runtime, int64_t arena_bytes, int64_t vocab_size);

    // Attention's layer must be there already.
    void append(Op op);

    // Throws std::invalid_argument, before anything is computed, for a step that does not fit
    // together.
    void forward(const Step& step);

    int64_t vocab_size() const { return vocab_size_; }

  private:
    struct Angles {
        std::vector<float> inv_freq;
        float scale;
        std::vector<float> cos, sin;  // [rows][inv_freq]
    };
    void check(const Step& step) const;
    void begin(const Step& step);
    uint8_t* at(const Slot& slot) const;
    float* row(const Slot& slot, int64_t r) const;
    void need_attention_scratch(const AttentionOp& op);
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

    std::shared_ptr<Runtime> runtime_;
    const Kernels& kernels_;
    Pool& pool_;
    int64_t arena_bytes_, vocab_size_;
    int64_t token_limit_ = INT64_MAX;  // ids below it have a row in every embedding
    std::vector<Op> ops_;
    std::vector<Angles> angles_;

    // The step in progress.
    Step step_{};
    uint8_t* arena_ = nullptr;
    std::vector<int64_t> sequence_of_;
    AttentionPlan plan_;
    int64_t rows_ = 0;  // of the buffers in use; changes at select_rows
};

}  // namespace galley
