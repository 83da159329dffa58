#include "runtime/attention.hpp"

#include <algorithm>

#include "kernels/kernels.hpp"

namespace galley {

void AttentionPlan::clear() {
    rows_.clear();
    shape_ = {};
}

// An item that is more than a quarter of a thread's share is split into its chunks.
void AttentionPlan::cut(const Shape& shape, int threads) {
    if (shape == shape_) return;
    shape_ = shape;
    tiles_.clear();
    items_.clear();
    merges_.clear();
    partial_floats_ = 0;
    const int64_t tile = std::max<int64_t>(1, kAttendRows / shape.group);
    int64_t chunks = 0;
    for (const AttentionRows& rows : rows_)
        // All tiles of a head follow each other, while its keys and values are in the caches.
        for (int64_t head = 0; head < shape.kv_heads; ++head)
            for (int64_t row = rows.begin; row < rows.end; row += tile) {
                AttentionRows some = rows;
                some.begin = row;
                some.end = std::min(row + tile, rows.end);
                some.first += row - rows.begin;
                int64_t last = some.first + shape.after + some.end - row - 1;
                if (some.keys)
                    last = shape.reach.window ? std::min(last, some.keys - 1) : some.keys - 1;
                const int64_t first = first_chunk(shape.reach, some.first + shape.after);
                const int64_t count = last_chunk(last) - first + 1;
                tiles_.push_back({some, head, first, count, AttentionItem::kNone});
                chunks += count;
            }
    const int64_t most = threads > 1 ? std::max<int64_t>(1, chunks / (4 * threads)) : chunks;
    for (const AttentionItem& whole : tiles_) split(whole, most);
}

void AttentionPlan::split(const AttentionItem& whole, int64_t most_chunks) {
    if (whole.chunks <= most_chunks) return items_.push_back(whole);
    const int64_t rows = (whole.rows.end - whole.rows.begin) * shape_.group;
    merges_.push_back(whole);
    merges_.back().partial = partial_floats_;
    for (int64_t i = 0; i < whole.chunks; ++i) {
        items_.push_back(whole);
        items_.back().first_chunk += i;
        items_.back().chunks = 1;
        items_.back().partial = partial_floats_;
        partial_floats_ += galley::partial_floats(rows, shape_.padded_value_dim);
    }
}

}  // namespace galley
