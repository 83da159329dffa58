// How a program's ops run, each over all rows of the step.
#include <algorithm>
#include <cstring>

#include "program.hpp"

namespace galley {

namespace {

constexpr int64_t kCoreCache = 512 << 10;

// What each_row() takes the writing of a token's keys and values for.
int64_t write_width(const Cache& cache) {
    return 4 * cache.kv_heads * (cache.key_dim + cache.value_dim);
}

}  // namespace

uint8_t* Program::at(const Slot& slot) const {
    if (slot.offset == Slot::kLogits) return reinterpret_cast<uint8_t*>(step_.logits);
    return arena_ + slot.offset * arena_rows_ + slot.column;
}

float* Program::row(const Slot& slot, int64_t r) const {
    return reinterpret_cast<float*>(at(slot) + r * slot.stride);
}

// body(r, out) computes row r of a float buffer, which becomes y, as `layout` wants it.
template <class Body>
void Program::each_row_prepared(const SharedLayout& layout, int64_t width, const Slot& y,
                                const Body& body) {
    each_row(width, [&](int64_t r, int thread) {
        if (!layout) return body(r, row(y, r));
        auto* floats = reinterpret_cast<float*>(runtime_->scratch(thread));
        body(r, floats);
        kernels_.quantize_input(layout->matrix(), layout->inputs(), floats, at(y) + r * y.stride,
                                layout->sums());
    });
}

void Program::run(const EmbedOp& op) {
    each_row(op.width, [&](int64_t r, int) {
        kernels_.embed(op.weight->matrix(), step_.tokens[r], row(op.y, r));
    });
}

void Program::run(const PrepareOp& op) {
    const InputLayout& layout = *op.layout;
    each_row(layout.matrix().depth, [&](int64_t r, int) {
        kernels_.quantize_input(layout.matrix(), layout.inputs(), row(op.x, r),
                                at(op.y) + r * op.y.stride, layout.sums());
    });
}

void Program::run(const LinearOp& op) {
    const Matrix& m = op.weight->matrix();
    const int64_t sums = op.layout ? op.layout->sums() : 0;
    const Inputs inputs = op.layout ? op.layout->inputs() : Inputs::kFloats;
    const Linear linear = {&m,
                           {at(op.x), op.x.stride, sums, inputs},
                           op.bias.empty() ? nullptr : op.bias.data(),
                           row(op.y, 0),
                           op.y.stride / static_cast<int64_t>(sizeof(float)),
                           rows_};
    const int64_t blocks = round_up(m.outputs, kLanes) / kLanes;
    // Each item reads all rows: those that no cache of a core holds are read by fewer.
    const bool few = rows_ * op.x.stride <= kCoreCache;
    const int64_t even = blocks / (4 * pool_.threads()) / kBlocksPerItem * kBlocksPerItem;
    const int64_t grain = few ? kBlocksPerItem : std::clamp(even, kBlocksPerItem, kMostBlocks);
    pool_.run(blocks, grain, [&](int64_t begin, int64_t end, int thread) {
        kernels_.linear(linear, begin, end, runtime_->scratch(thread));
    });
}

void Program::normalise(const NormOp& op, const float* x, float* y) const {
    const float* weight = op.weight.data();
    if (op.bias.empty())
        kernels_.rms_norm(x, weight, op.eps, op.width, op.weight.size(), y);
    else
        kernels_.layer_norm(x, weight, op.bias.data(), op.eps, op.width, y);
}

void Program::run(const NormOp& op) {
    each_row_prepared(op.layout, op.width, op.y,
                      [&](int64_t r, float* y) { normalise(op, row(op.x, r), y); });
}

void Program::run(const AddNormOp& op) {
    const NormOp& norm = op.norm;
    each_row_prepared(norm.layout, 2 * norm.width, norm.y, [&](int64_t r, float* y) {
        float* sum = row(norm.x, r);
        kernels_.add(row(op.a, r), row(op.b, r), norm.width, sum);
        normalise(norm, sum, y);
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
    write_all_kv(runtime_->cache(op.layer), tables_of(op.layer), op.k, op.v);
    attend_own(op);
}

void Program::run(const RopeAttentionOp& op) {
    const AttentionOp& attention = op.attention;
    const Cache& cache = runtime_->cache(attention.layer);
    const Tables tables = tables_of(attention.layer);
    const int64_t width = attention.heads * cache.key_dim;
    const int64_t key_width = cache.kv_heads * cache.key_dim;
    each_row(width + key_width + write_width(cache), [&](int64_t r, int thread) {
        turn(op.angles, r, row(op.q, r), width, row(attention.q, r));
        auto* keys = reinterpret_cast<float*>(runtime_->scratch(thread));
        turn(op.angles, r, row(attention.k, r), key_width, keys);
        write_kv(cache, tables, r, keys, row(attention.v, r));
    });
    attend_own(attention);
}

void Program::write_kv(const Cache& cache, const Tables& tables, int64_t r, const float* k,
                       const float* v) const {
    const int64_t position = step_.positions[r];
    const int64_t block = tables.of(sequence_of_[r])[position / kBlockTokens];
    kernels_.write_kv(cache, k, v, block, position % kBlockTokens);
}

void Program::write_all_kv(const Cache& cache, const Tables& tables, const Slot& k, const Slot& v) {
    each_row(write_width(cache), [&](int64_t r, int) {
        const int64_t s = sequence_of_[r], slot = step_.positions[r] % kBlockTokens;
        const int64_t first = r - slot;
        const bool whole = first >= step_.starts[s] && first + kBlockTokens <= step_.starts[s + 1];
        if (!whole) return write_kv(cache, tables, r, row(k, r), row(v, r));
        if (slot > 0) return;  // the block's first row brings all
        const int64_t block = tables.of(s)[step_.positions[r] / kBlockTokens];
        kernels_.write_kv_block(cache, row(k, r), row(k, r + 1) - row(k, r), row(v, r),
                                row(v, r + 1) - row(v, r), block);
    });
}

void Program::attend_own(const AttentionOp& op) {
    attend_all({runtime_->cache(op.layer), tables_of(op.layer), plan_, op.heads, op.scale,
                op.window, op.q, op.y});
}

void Program::attend_all(const Attention& a) {
    const int64_t group = a.heads / a.cache.kv_heads;
    a.plan.cut({group, a.cache.kv_heads, a.cache.padded_value_dim, a.window}, pool_.threads());
    float* partials = runtime_->partials(a.plan.partial_floats());
    const auto& items = a.plan.items();
    pool_.run(items.size(), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
            const Attend attended = attend(a, items[i], thread);
            if (items[i].partial == AttentionItem::kNone)
                kernels_.attend(attended);
            else
                kernels_.attend_chunk(attended, items[i].first_chunk, partials + items[i].partial);
        }
    });
    const auto& merges = a.plan.merges();
    pool_.run(merges.size(), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i)
            kernels_.merge_chunks(attend(a, merges[i], thread), partials + merges[i].partial,
                                  merges[i].chunks);
    });
}

Attend Program::attend(const Attention& a, const AttentionItem& item, int thread) const {
    const int64_t group = a.heads / a.cache.kv_heads;
    const int64_t head = item.kv_head * group;
    const AttentionRows& rows = item.rows;
    Attend attend{};
    attend.cache = a.cache;
    attend.kv_head = item.kv_head;
    attend.q = row(a.q, rows.begin) + head * a.cache.key_dim;
    attend.q_stride = a.q.stride / static_cast<int64_t>(sizeof(float));
    attend.out = row(a.y, rows.begin) + head * a.cache.value_dim;
    attend.out_stride = a.y.stride / static_cast<int64_t>(sizeof(float));
    attend.table = a.tables.of(rows.table);
    attend.keys = rows.keys;
    attend.first = rows.first;
    attend.tokens = rows.end - rows.begin;
    attend.group = group;
    attend.window = a.window;
    attend.scale = a.scale;
    attend.scratch = runtime_->scratch(thread);
    return attend;
}

void Program::run(const SiluMulOp& op) {
    each_row_prepared(op.layout, 4 * op.width, op.y, [&](int64_t r, float* y) {
        kernels_.silu_mul(row(op.a, r), row(op.b, r), op.width, y);
    });
}

void Program::run(const GeluOp& op) {
    each_row_prepared(op.layout, 4 * op.width, op.y,
                      [&](int64_t r, float* y) { kernels_.gelu(row(op.x, r), op.width, y); });
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

void Program::run(const FeaturesOp& op) {
    each_row(op.width, [&](int64_t r, int) {
        std::memcpy(row(op.y, r), frames_ + r * op.width, op.width * sizeof(float));
    });
}

void Program::run(const NeighboursOp& op) {
    const std::vector<int64_t>& starts = finer_starts_ = window_starts_;
    for (int64_t w = 0; w < step_.sequences; ++w) {
        const int64_t rows = (starts[w + 1] - starts[w] + op.stride - 1) / op.stride;
        window_starts_[w + 1] = window_starts_[w] + rows;
    }
    take_windows();
    each_row(2 * op.width * op.size, [&](int64_t r, int) {
        const int64_t w = sequence_of_[r];
        const int64_t first = starts[w] + step_.positions[r] * op.stride - op.size / 2;
        float* y = row(op.y, r);
        for (int64_t t = 0; t < op.size; ++t) {
            const bool inside = first + t >= starts[w] && first + t < starts[w + 1];
            const float* x = inside ? row(op.x, first + t) : nullptr;
            for (int64_t j = 0; j < op.width; ++j) y[j * op.size + t] = inside ? x[j] : 0.0f;
        }
    });
}

void Program::run(const EmbedPositionsOp& op) {
    each_row(op.width, [&](int64_t r, int) {
        std::memcpy(row(op.y, r), op.weight.data() + step_.positions[r] * op.width,
                    op.width * sizeof(float));
    });
}

void Program::run(const WindowAttentionOp& op) {
    const Tables tables = {window_blocks_.data(), window_block_starts_.data()};
    const int64_t blocks = window_block_starts_.back();
    Cache cache = op.cache;
    cache.data = runtime_->window_kv(blocks * cache.kv_heads * cache.head_bytes);
    write_all_kv(cache, tables, op.k, op.v);
    if (cache.type == KvType::kPairs) fill_pairs(cache, tables);
    attend_all({cache, tables, plan_, op.heads, op.scale, 0, op.q, op.y});
}

// A window's last value may have no neighbour; what lies there has no weight, but might be
// infinite.
void Program::fill_pairs(const Cache& cache, const Tables& tables) {
    zeros_.resize(cache.kv_heads * std::max(cache.key_dim, cache.value_dim));
    for (int64_t w = 0; w < step_.sequences; ++w) {
        const int64_t rows = step_.starts[w + 1] - step_.starts[w];
        if (rows % 2)
            kernels_.write_kv(cache, zeros_.data(), zeros_.data(),
                              tables.of(w)[rows / kBlockTokens], rows % kBlockTokens);
    }
}

void Program::run(const CrossKvOp& op) {
    write_all_kv(runtime_->cache(op.layer), step_.tables, op.k, op.v);
}

void Program::run(const CrossAttentionOp& op) {
    attend_all({runtime_->cache(op.layer), step_.cross_tables, cross_plan_, op.heads, op.scale, 0,
                op.q, op.y});
}

void Program::run(const CrossWeightsOp& op) {
    const auto chosen = static_cast<int64_t>(op.chosen.size());
    for (int64_t s = 0; s < step_.sequences; ++s) {
        const int64_t rows = step_.starts[s + 1] - step_.starts[s];
        const int64_t tiles = round_up(rows, kAttendRows) / kAttendRows;
        pool_.run(chosen * tiles, 1, [&](int64_t begin, int64_t end, int thread) {
            for (int64_t i = begin; i < end; ++i)
                kernels_.attention_weights(
                    attend_head(op, i / tiles, s, i % tiles * kAttendRows, thread));
        });
    }
}

// Some rows of a sequence, from its `first_row` on, for the chosen head number `place`.
Attend Program::attend_head(const CrossWeightsOp& op, int64_t place, int64_t sequence,
                            int64_t first_row, int thread) const {
    const Cache& cache = runtime_->cache(op.layer);
    const int64_t head = op.chosen[place], begin = step_.starts[sequence] + first_row;
    const int64_t stride = aligned_heads_ * step_.attention_rows;
    Attend attend{};
    attend.cache = cache;
    attend.kv_head = head / (op.heads / cache.kv_heads);
    attend.q = row(op.q, begin) + head * cache.key_dim;
    attend.q_stride = op.q.stride / static_cast<int64_t>(sizeof(float));
    attend.out = step_.attention + begin * stride + (op.first + place) * step_.attention_rows;
    attend.out_stride = stride;
    attend.table = step_.cross_tables.of(sequence);
    attend.keys = step_.cross_rows[sequence];
    attend.tokens = std::min(kAttendRows, step_.starts[sequence + 1] - begin);
    attend.group = 1;
    attend.scale = op.scale;
    attend.scratch = runtime_->scratch(thread);
    return attend;
}

}  // namespace galley
