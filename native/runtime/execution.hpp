// A step on its way through a program: what ops read and write.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/attention.hpp"
#include "runtime/op.hpp"
#include "runtime/runtime.hpp"

namespace galley {

// Throws std::invalid_argument.
void require(bool holds, const char* what);

inline int64_t blocks_of(int64_t rows) { return round_up(rows, kBlockTokens) / kBlockTokens; }

// KV blocks of several sequences or encoder inputs: number s has those from `starts[s]` to
// `starts[s + 1]`.
struct Tables {
    const int64_t* blocks;
    const int64_t* starts;

    const int64_t* of(int64_t s) const { return blocks + starts[s]; }
    int64_t size(int64_t s) const { return starts[s + 1] - starts[s]; }
};

// One step; see galley.ops.batch.Batch.
struct Step {
    const int64_t* tokens;
    const int64_t* types;  // of the tokens; null: all 0
    const int64_t* positions;
    int64_t rows;
    const int64_t* starts;
    int64_t sequences;
    Tables tables;  // of all sequences for KV group 0, then for group 1, ...
    const int64_t* wanted;
    int64_t wanted_rows;
    float* logits;
    // Of each sequence the encoder output's rows in the cache, and their number; null for text.
    Tables cross_tables;
    const int64_t* cross_rows;
    // Of each sequence the slot of its adapter, -1 for none; null: none has one.
    const int64_t* adapters;
    // Of each sequence where its state is and goes: the slot that it is read from (-1: it begins
    // with zeros), then by turns how many of the sequence's rows are done and the slot that the
    // state then is in; the last of these is after all rows.
    Tables states;
    // Of an aligner: its weights, [rows][aligned_heads][attention_rows], and no logits. What lies
    // beyond an encoder output's rows is not written.
    float* attention;
    int64_t attention_rows;
};

// Encoder inputs to encode; see galley.ops.batch.EncoderBatch. `frames` is
// [starts[count]][mels].
struct EncoderInputs {
    const float* frames;
    const int64_t* starts;
    int64_t count;
    Tables tables;
    // What the program gives of its rows, [rows of all inputs][given_width], or null.
    float* given;
};

// What a program's ops say of the steps that it can run.
struct Limits {
    int64_t tokens = INT64_MAX;     // ids below it have a row in every embedding
    int64_t types = INT64_MAX;      // as tokens, of their types
    int64_t positions = INT64_MAX;  // as tokens, of positions
    int64_t mels = 0;               // of an encoder
    int64_t given_width = 0;        // of the rows that an encoder gives to its caller
    bool crosses = false;           // whether there is cross-attention
    bool recurs = false;            // whether sequences have states
    bool adapts = false;            // whether adapters are added anywhere
    bool whole_texts = false;       // whether rows see others of their text without a cache
    int64_t aligned_heads = 0;      // whose weights are the result
    bool selects = false;           // whether wanted rows have been selected
    bool gives_logits = false;      // whether an op has written them, so that others may read
    bool all_wanted = false;        // logits are written without selecting: all rows must be wanted
    std::vector<int64_t> strides;   // of an encoder's convolutions
};

// The choices of all rows of a step, sorted by expert; see ops/experts.cpp.
struct ExpertGroups {
    // Blocks [begin, end) of a linear layer over the rows of one expert.
    struct Item {
        Linear linear;
        int64_t begin, end;
    };

    std::vector<int64_t> starts, next;  // of each expert
    std::vector<int64_t> rows, chosen;  // of each place: the row of the step, the expert
    std::vector<int64_t> places;        // of each choice of each row
    std::vector<int64_t> wanted;        // those that rows chose, as their cache numbers them
    std::vector<Item> items;
};

// By position, of pairs of a head's columns.
struct Rotation {
    std::vector<float> inv_freq;
    float scale;
    bool adjacent;  // whether a pair is two neighbors

    bool operator==(const Rotation& o) const {
        return inv_freq == o.inv_freq && scale == o.scale && adjacent == o.adjacent;
    }
    // Whether a head of so many columns has the pairs.
    void check(int64_t head_dim) const {
        require(!inv_freq.empty() && 2 * static_cast<int64_t>(inv_freq.size()) <= head_dim,
                "there are more angles than a head has pairs, or none");
    }
};

class Execution {
  public:
    // `arena_bytes` for each row of a step, or frame of its inputs.
    Execution(Runtime& runtime, int64_t arena_bytes, int64_t vocab_size);

    // For checks. `row_bytes`: of a row that the op reads from or writes to the slot.
    void check_read(const Slot& slot, int64_t row_bytes) const;
    void check_written(const Slot& slot, int64_t row_bytes);
    void check_logits(const Slot& slot, int64_t row_bytes) const;
    // Of floats.
    void check_floats_read(const Slot& slot, int64_t width) const { check_read(slot, 4 * width); }
    void check_floats_written(const Slot& slot, int64_t width) { check_written(slot, 4 * width); }
    // Of `width` floats that become what `layout` wants, if it is not null.
    void check_made(const SharedLayout& layout, const Slot& slot, int64_t width);
    // Number of a table of rotation angles.
    int angles_for(const Rotation& wanted);

    void begin(const Step& step);
    void begin(const EncoderInputs& inputs);
    // The rows of the buffers in use are now those whose logits are wanted.
    void take_wanted();
    // The rows of the buffers in use are now those that input_starts says.
    void take_inputs();

    uint8_t* at(const Slot& slot) const;
    float* row(const Slot& slot, int64_t r) const;
    // body(r, thread) for every row; `width` floats of work each.
    template <class Body>
    void each_row(int64_t width, const Body& body) {
        // Less work than this, in floats, is not worth waking another thread for.
        constexpr int64_t kShareFrom = 16384;
        const int64_t grain = kShareFrom > width ? kShareFrom / width : 1;
        pool.run(rows, grain, [&](int64_t begin, int64_t end, int thread) {
            for (int64_t r = begin; r < end; ++r) body(r, thread);
        });
    }
    // body(r, out) computes row r of a float buffer, which becomes y, as `layout` wants it.
    template <class Body>
    void each_row_made(const SharedLayout& layout, int64_t width, const Slot& y, const Body& body) {
        each_row(width, [&](int64_t r, int thread) {
            if (!layout) return body(r, row(y, r));
            auto* floats = reinterpret_cast<float*>(runtime.scratch(thread));
            body(r, floats);
            layout->write(kernels, floats, at(y) + r * y.stride);
        });
    }
    // Rotates a row's heads by its position.
    void turn(int angles, int64_t r, const float* x, int64_t width, int64_t head_dim,
              float* y) const;
    // The sequences' tables in the KV group of a layer.
    Tables tables_of(int64_t layer) const;

    Runtime& runtime;
    const Kernels& kernels;
    Pool& pool;
    const int64_t arena_bytes, vocab_size;
    Limits limits;

    // The step in progress. An encoder's inputs stand there as sequences, with starts and
    // positions of the buffers in use.
    Step step{};
    const float* frames = nullptr;
    float* given = nullptr;
    int64_t rows = 0;    // of the buffers in use; changes at select_rows and im2col
    bool ended = false;  // nobody wants what is left
    std::vector<int64_t> input_starts, finer_starts;
    std::vector<int64_t> sequence_of;
    std::vector<AdapterRows> adapter_rows;  // of the buffers in use; of others nothing is added
    AttentionPlan plan, cross_plan;
    // Tables of encoder_attention: the blocks of all inputs or texts, one after another.
    std::vector<int64_t> input_blocks, input_block_starts;
    std::vector<float> zeros;
    ExpertGroups experts;

  private:
    struct Angles {
        Rotation of;
        std::vector<float> cos, sin;  // [rows][inv_freq]
    };
    void check_inside(const Slot& slot, int64_t row_bytes) const;
    void take_rows(int64_t count);
    void number_blocks();
    void plan_cross_attention();
    void turn_angles();
    // row(r): which of the step's rows is row r of the buffers in use.
    template <class Row>
    void plan_adapters(const Row& row);

    std::vector<Angles> angles_;
    std::vector<int64_t> input_positions_;
    uint8_t* arena_ = nullptr;
    int64_t arena_rows_ = 0;
};

}  // namespace galley
