#include "program.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace galley {

namespace {

// Less work than this, in floats, is not worth waking another thread for.
constexpr int64_t kShareFrom = 16384;

}  // namespace

Program::Program(const Kernels& kernels, int threads, const std::vector<int>& cpus,
                 int64_t arena_bytes, int64_t vocab_size)
    : kernels_(kernels), pool_(threads, cpus), arena_bytes_(arena_bytes), vocab_size_(vocab_size) {}

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
    if (auto* norm = std::get_if<RmsNormOp>(&op)) need_scratch(4 * norm->width);
    if (auto* add_norm = std::get_if<AddRmsNormOp>(&op)) need_scratch(4 * add_norm->norm.width);
    if (auto* silu = std::get_if<SiluMulOp>(&op)) need_scratch(4 * silu->width);
    ops_.push_back(std::move(op));
}

int Program::angles_for(const std::vector<float>& inv_freq, float scale) {
    const auto same = [&](const Angles& a) { return a.inv_freq == inv_freq && a.scale == scale; };
    auto found = std::find_if(angles_.begin(), angles_.end(), same);
    if (found == angles_.end()) found = angles_.insert(found, Angles{inv_freq, scale, {}, {}});
    return static_cast<int>(found - angles_.begin());
}

void Program::need_attention_scratch(const AttentionOp& op) {
    const Cache& c = layers_.at(op.layer).cache;
    const int64_t rows = std::max(kAttendRows, op.heads / c.kv_heads);
    need_scratch(attend_scratch(rows, c.padded_dim));
    need_scratch(4 * c.kv_heads * c.head_dim);  // turned keys
}

void Program::need_scratch(int64_t bytes) {
    if (round_up(bytes, 64) <= scratch_bytes_) return;
    scratch_bytes_ = round_up(bytes, 64);
    scratch_ = Memory(scratch_bytes_ * pool_.threads());
}

void Program::add_kv_layer(int64_t kv_heads, int64_t head_dim, KvType type) {
    constexpr int64_t kLine = 64;
    const int64_t element = type == KvType::kF32 ? 4 : type == KvType::kBF16 ? 2 : 1;
    const int64_t padded = round_up(head_dim, kLanes);
    const int64_t values = round_up(kBlockTokens * head_dim * element, kLine);
    const int64_t scales = values + kBlockTokens * padded * element;
    const int64_t scale_bytes = type == KvType::kInt8 ? 2 * kBlockTokens * sizeof(float) : 0;
    layers_.push_back({{nullptr, type, kv_heads, head_dim, padded, values, scales,
                        round_up(scales + scale_bytes, kLine)},
                       Memory()});
}

int64_t Program::kv_bytes_per_block() const {
    int64_t bytes = 0;
    for (const Layer& layer : layers_) bytes += layer.block_bytes();
    return bytes;
}

void Program::allocate_kv(int64_t blocks) {
    for (Layer& layer : layers_) {
        layer.memory = Memory(blocks * layer.block_bytes());
        layer.cache.data = layer.memory.data();
    }
    blocks_ = blocks;
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
        require(step.tables[i] >= 0 && step.tables[i] < blocks_, "a KV block is out of range");
    for (int64_t i = 0; i < step.wanted_rows; ++i)
        require(step.wanted[i] >= 0 && step.wanted[i] < step.rows, "a wanted row is out of range");
    require(step.wanted_rows <= step.rows, "more rows are wanted than there are");
}

void Program::begin(const Step& step) {
    step_ = step;
    rows_ = step.rows;
    plan_.begin();
    const auto needed = static_cast<std::size_t>(arena_bytes_ * step.rows);
    if (arena_.size() < needed) arena_ = Memory(needed);
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

uint8_t* Program::at(const Slot& slot) const {
    if (slot.offset == Slot::kLogits) return reinterpret_cast<uint8_t*>(step_.logits);
    return arena_.data() + slot.offset * step_.rows + slot.column;
}

float* Program::row(const Slot& slot, int64_t r) const {
    return reinterpret_cast<float*>(at(slot) + r * slot.stride);
}

// body(r, thread) for every row; `width` floats of work each.
template <class Body>
void Program::each_row(int64_t width, const Body& body) {
    const int64_t grain = std::max<int64_t>(1, kShareFrom / width);
    pool_.run(rows_, grain, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t r = begin; r < end; ++r) body(r, thread);
    });
}

// body(r, out) computes row r of a float buffer, which becomes y, or is prepared for `layout`.
template <class Body>
void Program::each_row_prepared(const Weights& layout, int64_t width, const Slot& y,
                                const Body& body) {
    each_row(width, [&](int64_t r, int thread) {
        if (!layout) return body(r, row(y, r));
        auto* floats = reinterpret_cast<float*>(scratch(thread));
        body(r, floats);
        kernels_.prepare(layout->matrix(), floats, at(y) + r * y.stride, layout->sums_offset());
    });
}

void Program::run(const EmbedOp& op) {
    each_row(op.width, [&](int64_t r, int) {
        kernels_.embed(op.weight->matrix(), step_.tokens[r], row(op.y, r));
    });
}

void Program::run(const PrepareOp& op) {
    const Matrix& m = op.weight->matrix();
    const int64_t sums = op.weight->sums_offset();
    each_row(m.depth, [&](int64_t r, int) {
        kernels_.prepare(m, row(op.x, r), at(op.y) + r * op.y.stride, sums);
    });
}

void Program::run(const LinearOp& op) {
    const Matrix& m = op.weight->matrix();
    const Linear linear = {&m,
                           {at(op.x), op.x.stride, op.weight->sums_offset()},
                           op.bias.empty() ? nullptr : op.bias.data(),
                           row(op.y, 0),
                           op.y.stride / static_cast<int64_t>(sizeof(float)),
                           rows_};
    const int64_t blocks = round_up(m.outputs, kLanes) / kLanes;
    pool_.run(blocks, kBlocksPerItem,
              [&](int64_t begin, int64_t end, int) { kernels_.linear(linear, begin, end); });
}

void Program::run(const RmsNormOp& op) {
    each_row_prepared(op.layout, op.width, op.y, [&](int64_t r, float* y) {
        kernels_.rms_norm(row(op.x, r), op.weight.data(), op.eps, op.width, op.weight.size(), y);
    });
}

void Program::run(const AddRmsNormOp& op) {
    const RmsNormOp& norm = op.norm;
    each_row_prepared(norm.layout, 2 * norm.width, norm.y, [&](int64_t r, float* y) {
        float* sum = row(norm.x, r);
        kernels_.add(row(op.a, r), row(op.b, r), norm.width, sum);
        kernels_.rms_norm(sum, norm.weight.data(), norm.eps, norm.width, norm.weight.size(), y);
    });
}

void Program::turn(int angles, int64_t r, const float* x, int64_t width, float* y) const {
    const Angles& a = angles_[angles];
    const int64_t half = a.inv_freq.size();
    kernels_.rope(x, a.cos.data() + r * half, a.sin.data() + r * half, width, 2 * half, y);
}

void Program::run(const RopeOp& op) {
    each_row(op.width,
             [&](int64_t r, int) { turn(op.angles, r, row(op.x, r), op.width, row(op.y, r)); });
}

void Program::run(const AttentionOp& op) {
    const Cache& cache = layers_[op.layer].cache;
    each_row(8 * cache.kv_heads * cache.head_dim,
             [&](int64_t r, int) { write_kv(cache, r, row(op.k, r), row(op.v, r)); });
    attend_all(op);
}

void Program::run(const RopeAttentionOp& op) {
    const AttentionOp& attention = op.attention;
    const Cache& cache = layers_[attention.layer].cache;
    const int64_t width = attention.heads * cache.head_dim;
    const int64_t kv_width = cache.kv_heads * cache.head_dim;
    each_row(width + 9 * kv_width, [&](int64_t r, int thread) {
        turn(op.angles, r, row(op.q, r), width, row(attention.q, r));
        auto* keys = reinterpret_cast<float*>(scratch(thread));
        turn(op.angles, r, row(attention.k, r), kv_width, keys);
        write_kv(cache, r, keys, row(attention.v, r));
    });
    attend_all(attention);
}

void Program::write_kv(const Cache& cache, int64_t r, const float* k, const float* v) const {
    const int64_t position = step_.positions[r];
    const int64_t* table = step_.tables + step_.table_starts[sequence_of_[r]];
    kernels_.write_kv(cache, k, v, table[position / kBlockTokens], position % kBlockTokens);
}

void Program::attend_all(const AttentionOp& op) {
    const Cache& cache = layers_[op.layer].cache;
    plan_.cut(step_, {op.heads / cache.kv_heads, cache.kv_heads, cache.padded_dim, op.window},
              pool_.threads());
    const std::size_t needed = plan_.partial_floats() * sizeof(float);
    if (partials_.size() < needed) partials_ = Memory(needed);
    float* partials = reinterpret_cast<float*>(partials_.data());
    const auto& items = plan_.items();
    pool_.run(items.size(), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
            const Attend a = attend(op, items[i], thread);
            if (items[i].partial == AttentionItem::kNone)
                kernels_.attend(a);
            else
                kernels_.attend_chunk(a, items[i].first_chunk, partials + items[i].partial);
        }
    });
    const auto& merges = plan_.merges();
    pool_.run(merges.size(), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i)
            kernels_.merge_chunks(attend(op, merges[i], thread), partials + merges[i].partial,
                                  merges[i].chunks);
    });
}

Attend Program::attend(const AttentionOp& op, const AttentionItem& item, int thread) const {
    const Cache& cache = layers_[op.layer].cache;
    const int64_t group = op.heads / cache.kv_heads;
    const int64_t column = item.kv_head * group * cache.head_dim;
    return {cache,
            item.kv_head,
            row(op.q, item.row) + column,
            row(op.y, item.row) + column,
            op.q.stride / static_cast<int64_t>(sizeof(float)),
            op.y.stride / static_cast<int64_t>(sizeof(float)),
            step_.tables + step_.table_starts[item.sequence],
            step_.positions[item.row],
            item.tokens,
            group,
            op.window,
            op.scale,
            scratch(thread)};
}

void Program::run(const SiluMulOp& op) {
    each_row_prepared(op.layout, 4 * op.width, op.y, [&](int64_t r, float* y) {
        kernels_.silu_mul(row(op.a, r), row(op.b, r), op.width, y);
    });
}

void Program::run(const AddOp& op) {
    each_row(op.width, [&](int64_t r, int) {
        kernels_.add(row(op.a, r), row(op.b, r), op.width, row(op.y, r));
    });
}

void Program::run(const SelectRowsOp& op) {
    rows_ = step_.wanted_rows;
    for (int64_t r = 0; r < rows_; ++r)
        std::memcpy(row(op.y, r), row(op.x, step_.wanted[r]), op.width * sizeof(float));
}

}  // namespace galley
