#include "program.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace galley {

Program::Program(std::shared_ptr<Runtime> runtime, int64_t arena_bytes, int64_t vocab_size)
    : runtime_(std::move(runtime)),
      kernels_(runtime_->kernels()),
      pool_(runtime_->pool()),
      arena_bytes_(arena_bytes),
      vocab_size_(vocab_size) {}

void Program::append(Op op) {
    if (auto* rope = std::get_if<RopeOp>(&op))
        rope->angles = angles_for(rope->inv_freq, rope->scale);
    if (auto* embed = std::get_if<EmbedOp>(&op))
        token_limit_ = std::min(token_limit_, embed->weight->matrix().outputs);
    if (auto* attention = std::get_if<AttentionOp>(&op)) need_attention_scratch(*attention);
    if (auto* fused = std::get_if<RopeAttentionOp>(&op)) {
        fused->angles = angles_for(fused->inv_freq, fused->rope_scale);
        need_attention_scratch(fused->attention);
    }
    if (auto* norm = std::get_if<RmsNormOp>(&op)) runtime_->need_scratch(4 * norm->width);
    if (auto* add_norm = std::get_if<AddRmsNormOp>(&op))
        runtime_->need_scratch(4 * add_norm->norm.width);
    if (auto* silu = std::get_if<SiluMulOp>(&op)) runtime_->need_scratch(4 * silu->width);
    ops_.push_back(std::move(op));
}

int Program::angles_for(const std::vector<float>& inv_freq, float scale) {
    const auto same = [&](const Angles& a) { return a.inv_freq == inv_freq && a.scale == scale; };
    auto found = std::find_if(angles_.begin(), angles_.end(), same);
    if (found == angles_.end()) found = angles_.insert(found, Angles{inv_freq, scale, {}, {}});
    return static_cast<int>(found - angles_.begin());
}

void Program::need_attention_scratch(const AttentionOp& op) {
    const Cache& c = runtime_->cache(op.layer);
    const int64_t rows = std::max(kAttendRows, op.heads / c.kv_heads);
    runtime_->need_scratch(attend_scratch(rows, c.padded_dim));
    runtime_->need_scratch(4 * c.kv_heads * c.head_dim);  // turned keys
}

void Program::forward(const Step& step) {
    check(step);
    begin(step);
    for (const Op& op : ops_) {
        if (std::holds_alternative<SelectRowsOp>(op) && step.wanted_rows == 0) return;
        std::visit([this](const auto& o) { run(o); }, op);
    }
}

void Program::check(const Step& step) const {
    const auto require = [](bool holds, const char* what) {
        if (!holds) throw std::invalid_argument(what);
    };
    require(step.rows > 0 && step.sequences > 0, "a step needs at least one row");
    require(step.starts[0] == 0 && step.starts[step.sequences] == step.rows,
            "starts do not cover the rows");
    for (int64_t r = 0; r < step.rows; ++r)
        require(step.tokens[r] >= 0 && step.tokens[r] < token_limit_, "a token id is out of range");
    for (int64_t s = 0; s < step.sequences; ++s) {
        const int64_t begin = step.starts[s], end = step.starts[s + 1];
        require(begin < end, "a sequence has no rows");
        require(step.positions[begin] >= 0, "a position is negative");
        for (int64_t r = begin + 1; r < end; ++r)
            require(step.positions[r] == step.positions[r - 1] + 1,
                    "a sequence's positions are not consecutive");
        const int64_t blocks = step.table_starts[s + 1] - step.table_starts[s];
        require(step.positions[end - 1] / kBlockTokens < blocks, "a KV table is too short");
    }
    for (int64_t i = 0; i < step.table_starts[step.sequences]; ++i)
        require(step.tables[i] >= 0 && step.tables[i] < runtime_->kv_blocks(),
                "a KV block is out of range");
    for (int64_t i = 0; i < step.wanted_rows; ++i)
        require(step.wanted[i] >= 0 && step.wanted[i] < step.rows, "a wanted row is out of range");
    require(step.wanted_rows <= step.rows, "more rows are wanted than there are");
}

void Program::begin(const Step& step) {
    step_ = step;
    rows_ = step.rows;
    plan_.begin();
    arena_ = runtime_->arena(arena_bytes_ * step.rows);
    sequence_of_.resize(step.rows);
    for (int64_t s = 0; s < step.sequences; ++s)
        std::fill(sequence_of_.begin() + step.starts[s], sequence_of_.begin() + step.starts[s + 1],
                  s);
    for (Angles& a : angles_) {
        const int64_t half = a.inv_freq.size();
        a.cos.resize(step.rows * half);
        a.sin.resize(step.rows * half);
        each_row(half * 16, [&](int64_t r, int) {
            const float position = static_cast<float>(step.positions[r]);
            for (int64_t i = 0; i < half; ++i) {
                const float turn = position * a.inv_freq[i];
                a.cos[r * half + i] = std::cos(turn) * a.scale;
                a.sin[r * half + i] = std::sin(turn) * a.scale;
            }
        });
    }
}

}  // namespace galley
