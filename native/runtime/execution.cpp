#include "runtime/execution.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace galley {

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

Execution::Execution(Runtime& r, int64_t arena, int64_t vocab)
    : runtime(r), kernels(r.kernels()), pool(r.pool()), arena_bytes(arena), vocab_size(vocab) {}

void Execution::check_inside(const Slot& slot, int64_t row_bytes) const {
    require(slot.column >= 0 && slot.column <= slot.stride - row_bytes,
            "a buffer's rows are narrower than what an op reads or writes");
    require(slot.column % 4 == 0 && slot.stride % 4 == 0, "a buffer's rows are not whole floats");
    require(
        slot.offset >= 0 && slot.stride <= arena_bytes && slot.offset <= arena_bytes - slot.stride,
        "a buffer lies outside of the arena");
}

void Execution::check_read(const Slot& slot, int64_t row_bytes) const {
    if (slot.offset != Slot::kLogits) return check_inside(slot, row_bytes);
    require(limits.gives_logits, "logits are read before they are written");
    check_logits(slot, row_bytes);
}

void Execution::check_written(const Slot& slot, int64_t row_bytes) {
    if (slot.offset != Slot::kLogits) return check_inside(slot, row_bytes);
    check_logits(slot, row_bytes);
    limits.gives_logits = true;
    if (!limits.selects) limits.all_wanted = true;
}

void Execution::check_logits(const Slot& slot, int64_t row_bytes) const {
    require(slot.column == 0 && slot.stride == 4 * vocab_size && row_bytes == slot.stride,
            "rows of logits are as wide as the vocabulary");
}

void Execution::check_made(const SharedLayout& layout, const Slot& slot, int64_t width) {
    require(width > 0, "a buffer has no columns");
    require(!layout || layout->matrix().depth == width,
            "a quantized row is not as wide as the weights are deep");
    check_written(slot, layout ? layout->row_bytes() : 4 * width);
    runtime.need_scratch(4 * width);
}

int Execution::angles_for(const Rotation& wanted) {
    const auto same = [&](const Angles& a) { return a.of == wanted; };
    auto found = std::find_if(angles_.begin(), angles_.end(), same);
    if (found == angles_.end()) found = angles_.insert(found, Angles{wanted, {}, {}});
    return static_cast<int>(found - angles_.begin());
}

void Execution::begin(const Step& given) {
    step = given;
    ended = false;
    arena_rows_ = step.rows;
    arena_ = runtime.arena(arena_bytes * step.rows);
    take_rows(step.rows);
    for (int64_t s = 0; s < step.sequences; ++s) {
        const int64_t begin = step.starts[s], end = step.starts[s + 1];
        plan.add({begin, end, s, limits.whole_texts ? end - begin : 0, step.positions[begin]});
    }
    if (limits.whole_texts) number_blocks();
    if (limits.crosses) plan_cross_attention();
    plan_adapters([](int64_t r) { return r; });
    turn_angles();
}

void Execution::take_wanted() {
    rows = step.wanted_rows;
    ended = rows == 0;
    plan_adapters([&](int64_t r) { return step.wanted[r]; });
}

template <class Row>
void Execution::plan_adapters(const Row& row) {
    adapter_rows.clear();
    if (!step.adapters) return;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t slot = step.adapters[sequence_of[row(r)]];
        if (slot < 0) continue;
        const bool goes_on = !adapter_rows.empty() && adapter_rows.back().end == r &&
                             adapter_rows.back().slot == slot &&
                             r - adapter_rows.back().begin < Adapters::kRows;
        if (goes_on)
            ++adapter_rows.back().end;
        else
            adapter_rows.push_back({r, r + 1, slot});
    }
}

void Execution::take_rows(int64_t count) {
    rows = count;
    plan.clear();
    sequence_of.resize(rows);
    for (int64_t s = 0; s < step.sequences; ++s)
        std::fill(sequence_of.begin() + step.starts[s], sequence_of.begin() + step.starts[s + 1],
                  s);
}

// Neighboring sequences over the same encoder output, as beams are, share its loads.
void Execution::plan_cross_attention() {
    const Tables& tables = step.cross_tables;
    const auto same = [&](int64_t a, int64_t b) {
        return step.cross_rows[a] == step.cross_rows[b] &&
               std::equal(tables.of(a), tables.of(a) + blocks_of(step.cross_rows[a]), tables.of(b));
    };
    cross_plan.clear();
    for (int64_t s = 0, next; s < step.sequences; s = next) {
        for (next = s + 1; next < step.sequences && same(s, next);) ++next;
        cross_plan.add({step.starts[s], step.starts[next], s, step.cross_rows[s], 0});
    }
}

void Execution::turn_angles() {
    for (Angles& a : angles_) {
        const int64_t half = a.of.inv_freq.size();
        a.cos.resize(rows * half);
        a.sin.resize(rows * half);
        each_row(half * 16, [&](int64_t r, int) {
            const float position = static_cast<float>(step.positions[r]);
            for (int64_t i = 0; i < half; ++i) {
                const float turn = position * a.of.inv_freq[i];
                a.cos[r * half + i] = std::cos(turn) * a.of.scale;
                a.sin[r * half + i] = std::sin(turn) * a.of.scale;
            }
        });
    }
}

void Execution::begin(const EncoderInputs& inputs) {
    step = {};
    ended = false;
    step.sequences = inputs.count;
    step.tables = inputs.tables;
    frames = inputs.frames;
    given = inputs.given;
    adapter_rows.clear();
    arena_rows_ = inputs.starts[inputs.count];
    arena_ = runtime.arena(arena_bytes * arena_rows_);
    input_starts.assign(inputs.starts, inputs.starts + inputs.count + 1);
    take_inputs();
}

void Execution::take_inputs() {
    const int64_t count = input_starts.back();
    input_positions_.resize(count);
    step.starts = input_starts.data();
    step.positions = input_positions_.data();
    take_rows(count);
    for (int64_t input = 0; input < step.sequences; ++input) {
        const int64_t begin = input_starts[input], end = input_starts[input + 1];
        std::iota(input_positions_.begin() + begin, input_positions_.begin() + end, 0);
        plan.add({begin, end, input, end - begin, 0});
    }
    number_blocks();
}

void Execution::number_blocks() {
    input_block_starts.assign(1, 0);
    for (int64_t s = 0; s < step.sequences; ++s)
        input_block_starts.push_back(input_block_starts.back() +
                                     blocks_of(step.starts[s + 1] - step.starts[s]));
    input_blocks.resize(input_block_starts.back());
    std::iota(input_blocks.begin(), input_blocks.end(), 0);
}

uint8_t* Execution::at(const Slot& slot) const {
    if (slot.offset == Slot::kLogits) return reinterpret_cast<uint8_t*>(step.logits);
    return arena_ + slot.offset * arena_rows_ + slot.column;
}

float* Execution::row(const Slot& slot, int64_t r) const {
    return reinterpret_cast<float*>(at(slot) + r * slot.stride);
}

void Execution::turn(int angles, int64_t r, const float* x, int64_t width, int64_t head_dim,
                     float* y) const {
    const Angles& a = angles_[angles];
    const int64_t pairs = a.of.inv_freq.size();
    const auto rope = a.of.adjacent ? kernels.rope_adjacent : kernels.rope;
    rope(x, a.cos.data() + r * pairs, a.sin.data() + r * pairs, pairs, width, head_dim, y);
}

Tables Execution::tables_of(int64_t layer) const {
    const int64_t first = runtime.group_of(layer) * step.sequences;
    return {step.tables.blocks, step.tables.starts + first};
}

}  // namespace galley
