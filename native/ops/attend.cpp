#include "ops/attend.hpp"

#include <algorithm>

namespace galley {

const Cache& checked_layer(const Execution& e, int64_t layer) {
    require(layer >= 0 && layer < e.runtime.kv_layers(), "a KV layer does not exist");
    return e.runtime.cache(layer);
}

void check_queries(Execution& e, const Cache& cache, int64_t heads, const Slot& q) {
    require(heads > 0 && heads % cache.kv_heads == 0, "KV heads do not divide the heads");
    e.check_floats_read(q, heads * cache.key_dim);
    const int64_t rows = std::max(kAttendRows, heads / cache.kv_heads);
    e.runtime.need_scratch(attend_scratch(rows, cache));
}

void check_attention(Execution& e, const Cache& cache, int64_t heads, const Slot& q,
                     const Slot& y) {
    check_queries(e, cache, heads, q);
    e.check_floats_written(y, heads * cache.value_dim);
}

void check_kv(const Execution& e, const Cache& cache, const Slot& k, const Slot& v) {
    e.check_floats_read(k, cache.kv_heads * cache.key_dim);
    e.check_floats_read(v, cache.kv_heads * cache.value_dim);
}

int64_t write_width(const Cache& cache) {
    return 4 * cache.kv_heads * (cache.key_dim + cache.value_dim);
}

void write_kv(Execution& e, const Cache& cache, const Tables& tables, int64_t r, const float* k,
              const float* v) {
    const int64_t position = e.step.positions[r];
    const int64_t block = tables.of(e.sequence_of[r])[position / kBlockTokens];
    e.kernels.write_kv(cache, k, v, block, position % kBlockTokens);
}

void write_all_kv(Execution& e, const Cache& cache, const Tables& tables, const Slot& k,
                  const Slot& v) {
    const Step& step = e.step;
    e.each_row(write_width(cache), [&](int64_t r, int) {
        const int64_t s = e.sequence_of[r], slot = step.positions[r] % kBlockTokens;
        const int64_t first = r - slot;
        const bool whole = first >= step.starts[s] && first + kBlockTokens <= step.starts[s + 1];
        if (!whole) return write_kv(e, cache, tables, r, e.row(k, r), e.row(v, r));
        if (slot > 0) return;  // the block's first row brings all
        const int64_t block = tables.of(s)[step.positions[r] / kBlockTokens];
        e.kernels.write_kv_block(cache, e.row(k, r), e.row(k, r + 1) - e.row(k, r), e.row(v, r),
                                 e.row(v, r + 1) - e.row(v, r), block);
    });
}

namespace {

Attend attend(const Execution& e, const Attention& a, const AttentionItem& item, int thread) {
    const int64_t group = a.heads / a.cache.kv_heads;
    const int64_t head = item.kv_head * group;
    const AttentionRows& rows = item.rows;
    Attend attend{};
    attend.cache = a.cache;
    attend.kv_head = item.kv_head;
    attend.q = e.row(a.q, rows.begin) + head * a.cache.key_dim;
    attend.q_stride = a.q.stride / static_cast<int64_t>(sizeof(float));
    attend.out = e.row(a.y, rows.begin) + head * a.cache.value_dim;
    attend.out_stride = a.y.stride / static_cast<int64_t>(sizeof(float));
    attend.table = a.tables.of(rows.table);
    attend.keys = rows.keys;
    attend.first = rows.first;
    attend.tokens = rows.end - rows.begin;
    attend.group = group;
    attend.reach = a.reach;
    attend.after = a.after;
    attend.scale = a.scale;
    attend.cap = a.cap;
    attend.sinks = a.sinks ? a.sinks + head : nullptr;
    attend.scratch = e.runtime.scratch(thread);
    return attend;
}

}  // namespace

void attend_all(Execution& e, const Attention& a) {
    const int64_t group = a.heads / a.cache.kv_heads;
    a.plan.cut({group, a.cache.kv_heads, a.cache.padded_value_dim, a.reach, a.after},
               e.pool.threads());
    float* partials = e.runtime.partials(a.plan.partial_floats());
    const auto& items = a.plan.items();
    e.pool.run(items.size(), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
            const Attend attended = attend(e, a, items[i], thread);
            if (items[i].partial == AttentionItem::kNone)
                e.kernels.attend(attended);
            else
                e.kernels.attend_chunk(attended, items[i].first_chunk, partials + items[i].partial);
        }
    });
    const auto& merges = a.plan.merges();
    e.pool.run(merges.size(), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i)
            e.kernels.merge_chunks(attend(e, a, merges[i], thread), partials + merges[i].partial,
                                   merges[i].chunks);
    });
}

}  // namespace galley
