// How a step's attention is cut into work that threads share evenly.
#pragma once

#include <cstdint>
#include <vector>

namespace galley {

struct Step;

// Consecutive rows of one sequence against one KV head, which share their loads of keys and values.
struct AttentionItem {
    static constexpr int64_t kNone = -1;
    int64_t row, tokens, sequence, kv_head;
    int64_t first_chunk, chunks;
    int64_t partial;  // kNone, or where partial results begin, in floats
};

class AttentionPlan {
  public:
    // What decides it, for a given step.
    struct Shape {
        int64_t group, kv_heads, padded_dim, window;
        bool operator==(const Shape& o) const {
            return group == o.group && kv_heads == o.kv_heads && padded_dim == o.padded_dim &&
                   window == o.window;
        }
    };

    // Layers of the same shape share a plan until the next step.
    void begin() { shape_ = {}; }
    void cut(const Step& step, const Shape& shape, int threads);

    // Each a piece of work: all chunks of its rows or, with a place for its partial result, one.
    const std::vector<AttentionItem>& items() const { return items_; }
    // What to merge once all items are done.
    const std::vector<AttentionItem>& merges() const { return merges_; }
    int64_t partial_floats() const { return partial_floats_; }

  private:
    void add(const AttentionItem& whole, int64_t most_chunks);

    Shape shape_{};
    std::vector<AttentionItem> tiles_, items_, merges_;
    int64_t partial_floats_ = 0;
};

}  // namespace galley
