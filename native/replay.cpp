// How a program's ops run, each over all rows of the step.
#include <cstring>

#include "program.hpp"

namespace galley {

uint8_t* Program::at(const Slot& slot) const {
    if (slot.offset == Slot::kLogits) return reinterpret_cast<uint8_t*>(step_.logits);
    return arena_ + slot.offset * step_.rows + slot.column;
}

float* Program::row(const Slot& slot, int64_t r) const {
    return reinterpret_cast<float*>(at(slot) + r * slot.stride);
}

// body(r, out) computes row r of a float buffer, which becomes y, or is prepared for `layout`.
template <class Body>
void Program::each_row_prepared(const Weights& layout, int64_t width, const Slot& y,
                                const Body& body) {
    each_row(width, [&](int64_t r, int thread) {
        if (!layout) return body(r, row(y, r));
        auto* floats = reinterpret_cast<float*>(runtime_->scratch(thread));
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
    const Cache& cache = runtime_->cache(op.layer);
    each_row(8 * cache.kv_heads * cache.head_dim,
             [&](int64_t r, int) { write_kv(cache, r, row(op.k, r), row(op.v, r)); });
    attend_all(op);
}

void Program::run(const RopeAttentionOp& op) {
    const AttentionOp& attention = op.attention;
    const Cache& cache = runtime_->cache(attention.layer);
    const int64_t width = attention.heads * cache.head_dim;
    const int64_t kv_width = cache.kv_heads * cache.head_dim;
    each_row(width + 9 * kv_width, [&](int64_t r, int thread) {
        turn(op.angles, r, row(op.q, r), width, row(attention.q, r));
        auto* keys = reinterpret_cast<float*>(runtime_->scratch(thread));
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
    const Cache& cache = runtime_->cache(op.layer);
    plan_.cut(step_, {op.heads / cache.kv_heads, cache.kv_heads, cache.padded_dim, op.window},
              pool_.threads());
    float* partials = runtime_->partials(plan_.partial_floats());
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
    const Cache& cache = runtime_->cache(op.layer);
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
            runtime_->scratch(thread)};
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
