#include "program.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace galley {

namespace {

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

int64_t blocks_of(int64_t rows) { return round_up(rows, kBlockTokens) / kBlockTokens; }

}  // namespace

Program::Program(std::shared_ptr<Runtime> runtime, int64_t arena_bytes, int64_t vocab_size)
    : runtime_(std::move(runtime)),
      kernels_(runtime_->kernels()),
      pool_(runtime_->pool()),
      arena_bytes_(arena_bytes),
      vocab_size_(vocab_size) {}

void Program::append(Op op) {
    if (auto* rope = std::get_if<RopeOp>(&op))
        rope->angles = angles_for(rope->inv_freq, rope->scale);
    if (auto* linear = std::get_if<LinearOp>(&op)) {
        const Matrix& m = linear->weight->matrix();
        require(!linear->layout || linear->layout->suits(m), "x is prepared for other weights");
        if (linear->layout) runtime_->need_scratch(kLinearScratch);
    }
    if (auto* embed = std::get_if<EmbedOp>(&op))
        token_limit_ = std::min(token_limit_, embed->weight->matrix().outputs);
    if (auto* attention = std::get_if<AttentionOp>(&op))
        need_attention_scratch(runtime_->cache(attention->layer), attention->heads);
    if (auto* fused = std::get_if<RopeAttentionOp>(&op)) {
        fused->angles = angles_for(fused->inv_freq, fused->rope_scale);
        const Cache& cache = runtime_->cache(fused->attention.layer);
        need_attention_scratch(cache, fused->attention.heads);
        runtime_->need_scratch(4 * cache.kv_heads * cache.key_dim);  // turned keys
    }
    const auto makes = [this](const auto& made) {
        require(!made.layout || made.layout->matrix().depth == made.width,
                "what is prepared is not as wide as the weights are deep");
        runtime_->need_scratch(4 * made.width);
    };
    if (auto* norm = std::get_if<NormOp>(&op)) makes(*norm);
    if (auto* add_norm = std::get_if<AddNormOp>(&op)) makes(add_norm->norm);
    if (auto* silu = std::get_if<SiluMulOp>(&op)) makes(*silu);
    if (auto* gelu = std::get_if<GeluOp>(&op)) makes(*gelu);
    if (auto* features = std::get_if<FeaturesOp>(&op)) mels_ = features->width;
    if (auto* neighbours = std::get_if<NeighboursOp>(&op)) strides_.push_back(neighbours->stride);
    if (auto* embed = std::get_if<EmbedPositionsOp>(&op)) {
        const int64_t positions = static_cast<int64_t>(embed->weight.size()) / embed->width;
        position_limit_ = std::min(position_limit_, positions);
    }
    if (auto* attention = std::get_if<WindowAttentionOp>(&op))
        need_attention_scratch(attention->cache, attention->heads);
    if (auto* attention = std::get_if<CrossAttentionOp>(&op)) {
        crosses_ = true;
        need_attention_scratch(runtime_->cache(attention->layer), attention->heads);
    }
    if (auto* weights = std::get_if<CrossWeightsOp>(&op)) {
        crosses_ = true;
        const Cache& cache = runtime_->cache(weights->layer);
        for (int64_t head : weights->chosen)
            require(head >= 0 && head < weights->heads, "a chosen head does not exist");
        require(weights->heads % cache.kv_heads == 0, "KV heads do not divide the heads");
        require(weights->first == aligned_heads_, "chosen heads do not follow each other");
        aligned_heads_ += static_cast<int64_t>(weights->chosen.size());
        need_attention_scratch(cache, weights->heads);
    }
    ops_.push_back(std::move(op));
}

int Program::angles_for(const std::vector<float>& inv_freq, float scale) {
    const auto same = [&](const Angles& a) { return a.inv_freq == inv_freq && a.scale == scale; };
    auto found = std::find_if(angles_.begin(), angles_.end(), same);
    if (found == angles_.end()) found = angles_.insert(found, Angles{inv_freq, scale, {}, {}});
    return static_cast<int>(found - angles_.begin());
}

void Program::need_attention_scratch(const Cache& cache, int64_t heads) {
    const int64_t rows = std::max(kAttendRows, heads / cache.kv_heads);
    runtime_->need_scratch(attend_scratch(rows, cache));
}

void Program::forward(const Step& step) {
    check(step);
    begin(step);
    run_ops();
}

void Program::encode(const Windows& windows) {
    check(windows);
    begin(windows);
    run_ops();
}

void Program::run_ops() {
    for (const Op& op : ops_) {
        if (std::holds_alternative<SelectRowsOp>(op) && step_.wanted_rows == 0) return;
        runtime_->pause();
        std::visit([this](const auto& o) { run(o); }, op);
    }
}

void Program::check(const Step& step) const {
    require(!mels_, "this program encodes windows and takes no tokens");
    require(step.rows > 0, "a step needs at least one row");
    for (int64_t r = 0; r < step.rows; ++r)
        require(step.tokens[r] >= 0 && step.tokens[r] < token_limit_, "a token id is out of range");
    for (int64_t s = 0; s < step.sequences; ++s) {
        const int64_t begin = step.starts[s], end = step.starts[s + 1];
        require(begin < end, "a sequence has no rows");
        require(step.positions[begin] >= 0, "a position is negative");
        for (int64_t r = begin + 1; r < end; ++r)
            require(step.positions[r] == step.positions[r - 1] + 1,
                    "a sequence's positions are not consecutive");
        require(step.positions[end - 1] < position_limit_, "a position is beyond the model's last");
        for (int64_t g = 0; g < runtime_->kv_groups(); ++g)
            require(
                step.positions[end - 1] / kBlockTokens < step.tables.size(g * step.sequences + s),
                "a KV table is too short");
    }
    check_blocks(step.tables, runtime_->kv_groups() * step.sequences);
    check_cross(step);
    for (int64_t i = 0; i < step.wanted_rows; ++i)
        require(step.wanted[i] >= 0 && step.wanted[i] < step.rows, "a wanted row is out of range");
    require(step.wanted_rows <= step.rows, "more rows are wanted than there are");
}

void Program::check_cross(const Step& step) const {
    require(crosses_ == (step.cross_rows != nullptr),
            "windows are what cross-attention sees, and nothing else does");
    require((aligned_heads_ > 0) == (step.attention != nullptr),
            "weights are what an aligner gives, and nothing else does");
    if (!crosses_) return;
    for (int64_t s = 0; s < step.sequences; ++s) {
        require(step.cross_rows[s] > 0, "a sequence's window has no rows");
        require(!step.attention || step.cross_rows[s] <= step.attention_rows,
                "a window has more rows than there is room for");
        require(blocks_of(step.cross_rows[s]) <= step.cross_tables.size(s),
                "a window's KV table is too short");
    }
    check_blocks(step.cross_tables, step.sequences);
}

void Program::check(const Windows& windows) const {
    require(mels_, "this program has no encoder");
    for (int64_t w = 0; w < windows.windows; ++w) {
        const int64_t frames = windows.starts[w + 1] - windows.starts[w];
        require(frames > 0, "a window has no frames");
        require(encoded_rows(frames) <= position_limit_, "a window is longer than the model's");
        require(blocks_of(encoded_rows(frames)) <= windows.tables.size(w),
                "a window's KV table is too short");
    }
    check_blocks(windows.tables, windows.windows);
}

void Program::check_blocks(const Tables& tables, int64_t count) const {
    for (int64_t i = 0; i < tables.starts[count]; ++i)
        require(tables.blocks[i] >= 0 && tables.blocks[i] < runtime_->kv_blocks(),
                "a KV block is out of range");
}

Tables Program::tables_of(int64_t layer) const {
    const int64_t first = runtime_->group_of(layer) * step_.sequences;
    return {step_.tables.blocks, step_.tables.starts + first};
}

int64_t Program::encoded_rows(int64_t frames) const {
    for (int64_t stride : strides_) frames = (frames + stride - 1) / stride;
    return frames;
}

void Program::begin(const Step& step) {
    step_ = step;
    arena_rows_ = step.rows;
    arena_ = runtime_->arena(arena_bytes_ * step.rows);
    take_rows(step.rows);
    for (int64_t s = 0; s < step.sequences; ++s)
        plan_.add({step.starts[s], step.starts[s + 1], s, 0, step.positions[step.starts[s]]});
    if (crosses_) plan_cross_attention();
    turn_angles();
}

void Program::take_rows(int64_t rows) {
    rows_ = rows;
    plan_.clear();
    sequence_of_.resize(rows);
    for (int64_t s = 0; s < step_.sequences; ++s)
        std::fill(sequence_of_.begin() + step_.starts[s],
                  sequence_of_.begin() + step_.starts[s + 1], s);
}

// Neighbouring sequences over the same window, as beams are, share its loads.
void Program::plan_cross_attention() {
    const Tables& tables = step_.cross_tables;
    const auto same = [&](int64_t a, int64_t b) {
        return step_.cross_rows[a] == step_.cross_rows[b] &&
               std::equal(tables.of(a), tables.of(a) + blocks_of(step_.cross_rows[a]),
                          tables.of(b));
    };
    cross_plan_.clear();
    for (int64_t s = 0, next; s < step_.sequences; s = next) {
        for (next = s + 1; next < step_.sequences && same(s, next);) ++next;
        cross_plan_.add({step_.starts[s], step_.starts[next], s, step_.cross_rows[s], 0});
    }
}

void Program::turn_angles() {
    for (Angles& a : angles_) {
        const int64_t half = a.inv_freq.size();
        a.cos.resize(rows_ * half);
        a.sin.resize(rows_ * half);
        each_row(half * 16, [&](int64_t r, int) {
            const float position = static_cast<float>(step_.positions[r]);
            for (int64_t i = 0; i < half; ++i) {
                const float turn = position * a.inv_freq[i];
                a.cos[r * half + i] = std::cos(turn) * a.scale;
                a.sin[r * half + i] = std::sin(turn) * a.scale;
            }
        });
    }
}

void Program::begin(const Windows& windows) {
    step_ = {};
    step_.sequences = windows.windows;
    step_.tables = windows.tables;
    frames_ = windows.frames;
    arena_rows_ = windows.starts[windows.windows];
    arena_ = runtime_->arena(arena_bytes_ * arena_rows_);
    window_starts_.assign(windows.starts, windows.starts + windows.windows + 1);
    take_windows();
}

// The rows of the buffers in use are now those that window_starts_ says.
void Program::take_windows() {
    const int64_t rows = window_starts_.back();
    window_positions_.resize(rows);
    window_block_starts_.assign(1, 0);
    step_.starts = window_starts_.data();
    step_.positions = window_positions_.data();
    take_rows(rows);
    for (int64_t w = 0; w < step_.sequences; ++w) {
        const int64_t begin = window_starts_[w], end = window_starts_[w + 1];
        std::iota(window_positions_.begin() + begin, window_positions_.begin() + end, 0);
        window_block_starts_.push_back(window_block_starts_.back() + blocks_of(end - begin));
        plan_.add({begin, end, w, end - begin, 0});
    }
    window_blocks_.resize(window_block_starts_.back());
    std::iota(window_blocks_.begin(), window_blocks_.end(), 0);
}

}  // namespace galley
