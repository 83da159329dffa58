// How a step's attention is cut into work that threads share evenly.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"

namespace galley {

// Rows [begin, end) with keys in one table: of consecutive positions from `first` on, each of which
// sees the keys up to its own, or if `keys` is not 0 those of so many that its window holds, if
// there is one.
struct AttentionRows {
    int64_t begin, end, table, keys, first;
};

// Some of them against one KV head, which share their loads of keys and values.
struct AttentionItem {
    static constexpr int64_t kNone = -1;
    AttentionRows rows;
    int64_t kv_head;
    int64_t first_chunk, chunks;
    int64_t partial;  // kNone, or where partial results begin, in floats
};

class AttentionPlan {
  public:
    // What decides it, for a given step.
    struct Shape {
        int64_t group, kv_heads, padded_value_dim;
        Reach reach;
        int64_t after;
        bool operator==(const Shape& o) const {
            return group == o.group && kv_heads == o.kv_heads &&
                   padded_value_dim == o.padded_value_dim && reach.window == o.reach.window &&
                   reach.chunked == o.reach.chunked && after == o.after;
        }
    };

    // Layers of the same shape share a plan until other rows come.
    void clear();
    void add(const AttentionRows& rows) { rows_.push_back(rows); }
    void cut(const Shape& shape, int threads);

    // Each a piece of work: all chunks of its rows or, with a place for its partial result, one.
    const std::vector<AttentionItem>& items() const { return items_; }
    // What to merge once all items are done.
    const std::vector<AttentionItem>& merges() const { return merges_; }
    int64_t partial_floats() const { return partial_floats_; }

  private:
    void split(const AttentionItem& whole, int64_t most_chunks);

    std::vector<AttentionRows> rows_;
    Shape shape_{};
    std::vector<AttentionItem> tiles_, items_, merges_;
    int64_t partial_floats_ = 0;
};

}  // namespace galley
