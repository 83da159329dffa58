#include "runtime/program.hpp"

#include <utility>

namespace galley {

Program::Program(std::shared_ptr<Runtime> runtime, int64_t arena_bytes, int64_t vocab_size)
    : runtime_(std::move(runtime)), execution_(*runtime_, arena_bytes, vocab_size) {}

void Program::append(std::unique_ptr<Op> op) {
    op->check(execution_);
    ops_.push_back(std::move(op));
}

void Program::forward(const Step& step) {
    check(step);
    execution_.begin(step);
    run_ops();
}

void Program::encode(const EncoderInputs& inputs) {
    check(inputs);
    execution_.begin(inputs);
    run_ops();
}

void Program::run_ops() {
    for (const auto& op : ops_) {
        if (execution_.ended) return;
        runtime_->pause();
        op->run(execution_);
    }
}

void Program::check(const Step& step) const {
    require(!limits().mels, "this program encodes audio and takes no tokens");
    require(step.rows > 0, "a step needs at least one row");
    for (int64_t r = 0; r < step.rows; ++r)
        require(step.tokens[r] >= 0 && step.tokens[r] < limits().tokens,
                "a token id is out of range");
    for (int64_t r = 0; step.types && r < step.rows; ++r)
        require(step.types[r] >= 0 && step.types[r] < limits().types,
                "a token's type is out of range");
    for (int64_t s = 0; s < step.sequences; ++s) {
        const int64_t begin = step.starts[s], end = step.starts[s + 1];
        require(begin < end, "a sequence has no rows");
        require(step.positions[begin] >= 0, "a position is negative");
        require(!limits().whole_texts || step.positions[begin] == 0,
                "a text is computed as a whole, from its first token on");
        for (int64_t r = begin + 1; r < end; ++r)
            require(step.positions[r] == step.positions[r - 1] + 1,
                    "a sequence's positions are not consecutive");
        require(step.positions[end - 1] < limits().positions,
                "a position is beyond the model's last");
        for (int64_t g = 0; g < runtime_->kv_groups(); ++g)
            require(
                step.positions[end - 1] / kBlockTokens < step.tables.size(g * step.sequences + s),
                "a KV table is too short");
    }
    check_blocks(step.tables, runtime_->kv_groups() * step.sequences);
    check_cross(step);
    check_states(step);
    require(!step.adapters || limits().adapts, "this program takes no adapters");
    for (int64_t s = 0; step.adapters && s < step.sequences; ++s)
        require(step.adapters[s] >= -1 && step.adapters[s] < runtime_->adapters().slots(),
                "an adapter's slot is empty");
    for (int64_t i = 0; i < step.wanted_rows; ++i)
        require(step.wanted[i] >= 0 && step.wanted[i] < step.rows, "a wanted row is out of range");
    require(step.wanted_rows <= step.rows, "more rows are wanted than there are");
    require(!limits().all_wanted || step.wanted_rows == step.rows,
            "a program that selects no rows gives the logits of all");
}

void Program::check_cross(const Step& step) const {
    require(limits().crosses == (step.cross_rows != nullptr),
            "encoder outputs are what cross-attention sees, and nothing else does");
    require((limits().aligned_heads > 0) == (step.attention != nullptr),
            "weights are what an aligner gives, and nothing else does");
    if (!limits().crosses) return;
    for (int64_t s = 0; s < step.sequences; ++s) {
        require(step.cross_rows[s] > 0, "a sequence's encoder output has no rows");
        require(!step.attention || step.cross_rows[s] <= step.attention_rows,
                "an encoder output has more rows than there is room for");
        require(blocks_of(step.cross_rows[s]) <= step.cross_tables.size(s),
                "an encoder output's KV table is too short");
    }
    check_blocks(step.cross_tables, step.sequences);
}

void Program::check_states(const Step& step) const {
    require(limits().recurs == (step.states.starts != nullptr),
            "states are what recurrent layers keep, and nothing else does");
    const int64_t slots = runtime_->state_slots();
    for (int64_t s = 0; step.states.starts && s < step.sequences; ++s) {
        const int64_t *states = step.states.of(s), size = step.states.size(s);
        require(size >= 3 && size % 2 == 1, "a sequence's states are a slot, then rows and slots");
        require(states[0] < slots && (states[0] >= 0) == (step.positions[step.starts[s]] > 0),
                "a sequence goes on from a state unless it begins");
        for (int64_t i = 1; i < size; i += 2) {
            require(states[i] > (i == 1 ? 0 : states[i - 2]), "a sequence's states do not ascend");
            require(states[i + 1] >= 0 && states[i + 1] < slots, "a state's slot is out of range");
        }
        require(states[size - 2] == step.starts[s + 1] - step.starts[s],
                "a sequence's last state is not that after its last row");
    }
}

void Program::check(const EncoderInputs& inputs) const {
    require(limits().mels, "this program has no encoder");
    for (int64_t input = 0; input < inputs.count; ++input) {
        const int64_t frames = inputs.starts[input + 1] - inputs.starts[input];
        require(frames > 0, "an encoder input has no frames");
        require(encoded_rows(frames) <= limits().positions,
                "an encoder input is longer than the model's");
        require(blocks_of(encoded_rows(frames)) <= inputs.tables.size(input),
                "an encoder output's KV table is too short");
    }
    check_blocks(inputs.tables, inputs.count);
}

void Program::check_blocks(const Tables& tables, int64_t count) const {
    for (int64_t i = 0; i < tables.starts[count]; ++i)
        require(tables.blocks[i] >= 0 && tables.blocks[i] < runtime_->kv_blocks(),
                "a KV block is out of range");
}

int64_t Program::encoded_rows(const EncoderInputs& inputs) const {
    int64_t rows = 0;
    for (int64_t i = 0; i < inputs.count; ++i)
        rows += encoded_rows(inputs.starts[i + 1] - inputs.starts[i]);
    return rows;
}

int64_t Program::encoded_rows(int64_t frames) const {
    for (int64_t stride : limits().strides) frames = (frames + stride - 1) / stride;
    return frames;
}

}  // namespace galley
