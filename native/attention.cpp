#include "attention.hpp"

#include <algorithm>

#include "kernels.hpp"
#include "program.hpp"

namespace galley {

// An item that is more than a quarter of a thread's share is split into its chunks.
void AttentionPlan::cut(const Step& step, const Shape& shape, int threads) {
    if (shape == shape_) return;
    shape_ = shape;
    tiles_.clear();
    items_.clear();
    merges_.clear();
    partial_floats_ = 0;
    const int64_t tile = std::max<int64_t>(1, kAttendRows / shape.group);
    int64_t chunks = 0;
    for (int64_t s = 0; s < step.sequences; ++s)
        // All tiles of a head follow each other, while its keys and values are in the caches.
        for (int64_t head = 0; head < shape.kv_heads; ++head)
            for (int64_t row = step.starts[s]; row < step.starts[s + 1]; row += tile) {
                const int64_t tokens = std::min(tile, step.starts[s + 1] - row);
                const int64_t at = step.positions[row];
                const int64_t first = first_chunk(at, shape.window);
                const int64_t count = last_chunk(at + tokens - 1) - first + 1;
                tiles_.push_back({row, tokens, s, head, first, count, AttentionItem::kNone});
                chunks += count;
            }
    const int64_t most = threads > 1 ? std::max<int64_t>(1, chunks / (4 * threads)) : chunks;
    for (const AttentionItem& whole : tiles_) add(whole, most);
}

void AttentionPlan::add(const AttentionItem& whole, int64_t most_chunks) {
    if (whole.chunks <= most_chunks) return items_.push_back(whole);
    merges_.push_back(whole);
    merges_.back().partial = partial_floats_;
    for (int64_t i = 0; i < whole.chunks; ++i) {
        items_.push_back(whole);
        items_.back().first_chunk += i;
        items_.back().chunks = 1;
        items_.back().partial = partial_floats_;
        partial_floats_ += galley::partial_floats(whole.tokens * shape_.group, shape_.padded_dim);
    }
}

}  // namespace galley
