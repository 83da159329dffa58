// A decoder's attention to what an encoder left in the paged cache.
#include <algorithm>

#include "ops/attend.hpp"
#include "ops/ops.hpp"

namespace galley {
namespace {

class CrossKvOp : public Op {
  public:
    CrossKvOp(int64_t layer, Slot k, Slot v) : layer_(layer), k_(k), v_(v) {}

    void check(Execution& e) override { check_kv(e, checked_layer(e, layer_), k_, v_); }

    void run(Execution& e) const override {
        write_all_kv(e, e.runtime.cache(layer_), e.step.tables, k_, v_);
    }

  private:
    int64_t layer_;
    Slot k_, v_;
};

class CrossAttentionOp : public Op {
  public:
    CrossAttentionOp(int64_t layer, int64_t heads, float scale, Slot q, Slot y)
        : layer_(layer), heads_(heads), scale_(scale), q_(q), y_(y) {}

    void check(Execution& e) override {
        check_attention(e, checked_layer(e, layer_), heads_, q_, y_);
        e.limits.crosses = true;
    }

    void run(Execution& e) const override {
        attend_all(e, {e.runtime.cache(layer_), e.step.cross_tables, e.cross_plan, heads_, scale_,
                       Reach(), 0.0f, nullptr, q_, y_});
    }

  private:
    int64_t layer_, heads_;
    float scale_;
    Slot q_, y_;
};

class CrossWeightsOp : public Op {
  public:
    // `chosen`: of the heads; `first`: place of their weights in the result.
    CrossWeightsOp(int64_t layer, int64_t heads, std::vector<int64_t> chosen, int64_t first,
                   float scale, Slot q)
        : layer_(layer),
          heads_(heads),
          chosen_(std::move(chosen)),
          first_(first),
          scale_(scale),
          q_(q) {}

    void check(Execution& e) override {
        for (int64_t head : chosen_)
            require(head >= 0 && head < heads_, "a chosen head does not exist");
        check_queries(e, checked_layer(e, layer_), heads_, q_);
        require(first_ == e.limits.aligned_heads, "chosen heads do not follow each other");
        e.limits.aligned_heads += static_cast<int64_t>(chosen_.size());
        e.limits.crosses = true;
    }

    void run(Execution& e) const override {
        const auto chosen = static_cast<int64_t>(chosen_.size());
        for (int64_t s = 0; s < e.step.sequences; ++s) {
            const int64_t rows = e.step.starts[s + 1] - e.step.starts[s];
            const int64_t tiles = round_up(rows, kAttendRows) / kAttendRows;
            e.pool.run(chosen * tiles, 1, [&](int64_t begin, int64_t end, int thread) {
                for (int64_t i = begin; i < end; ++i)
                    e.kernels.attention_weights(
                        attend(e, i / tiles, s, i % tiles * kAttendRows, thread));
            });
        }
    }

  private:
    // Some rows of a sequence, from its `first_row` on, for the chosen head number `place`.
    Attend attend(const Execution& e, int64_t place, int64_t sequence, int64_t first_row,
                  int thread) const {
        const Step& step = e.step;
        const Cache& cache = e.runtime.cache(layer_);
        const int64_t head = chosen_[place], begin = step.starts[sequence] + first_row;
        const int64_t stride = e.limits.aligned_heads * step.attention_rows;
        Attend attend{};
        attend.cache = cache;
        attend.kv_head = head / (heads_ / cache.kv_heads);
        attend.q = e.row(q_, begin) + head * cache.key_dim;
        attend.q_stride = q_.stride / static_cast<int64_t>(sizeof(float));
        attend.out = step.attention + begin * stride + (first_ + place) * step.attention_rows;
        attend.out_stride = stride;
        attend.table = step.cross_tables.of(sequence);
        attend.keys = step.cross_rows[sequence];
        attend.tokens = std::min(kAttendRows, step.starts[sequence + 1] - begin);
        attend.group = 1;
        attend.scale = scale_;
        attend.scratch = e.runtime.scratch(thread);
        return attend;
    }

    int64_t layer_, heads_;
    std::vector<int64_t> chosen_;
    int64_t first_;
    float scale_;
    Slot q_;
};

}  // namespace

OpPtr make_cross_kv(int64_t layer, Slot k, Slot v) {
    return std::make_unique<CrossKvOp>(layer, k, v);
}

OpPtr make_cross_attention(int64_t layer, int64_t heads, float scale, Slot q, Slot y) {
    return std::make_unique<CrossAttentionOp>(layer, heads, scale, q, y);
}

OpPtr make_cross_weights(int64_t layer, int64_t heads, std::vector<int64_t> chosen, int64_t first,
                         float scale, Slot q) {
    return std::make_unique<CrossWeightsOp>(layer, heads, std::move(chosen), first, scale, q);
}

}  // namespace galley
