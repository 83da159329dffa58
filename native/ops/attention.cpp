// Causal attention over the paged cache.
#include "ops/attend.hpp"
#include "ops/ops.hpp"

namespace galley {
namespace {

class AttentionOp : public Op {
  public:
    // `sinks`: of each head, or empty.
    AttentionOp(std::vector<float> sinks, int64_t layer, int64_t heads, float scale, Reach reach,
                float cap, Slot q, Slot k, Slot v, Slot y)
        : sinks_(std::move(sinks)),
          layer_(layer),
          heads_(heads),
          scale_(scale),
          reach_(reach),
          cap_(cap),
          q_(q),
          k_(k),
          v_(v),
          y_(y) {}

    void check(Execution& e) override {
        const Cache& cache = checked_layer(e, layer_);
        require(reach_.window >= 0, "a window is negative");
        require(cap_ >= 0, "a cap is negative");
        require(sinks_.empty() || static_cast<int64_t>(sinks_.size()) == heads_,
                "there is not one sink for each head");
        check_kv(e, cache, k_, v_);
        check_attention(e, cache, heads_, q_, y_);
    }

    void run(Execution& e) const override {
        write_all_kv(e, e.runtime.cache(layer_), e.tables_of(layer_), k_, v_);
        attend(e);
    }

  protected:
    void attend(Execution& e) const {
        attend_all(e, {e.runtime.cache(layer_), e.tables_of(layer_), e.plan, heads_, scale_, reach_,
                       cap_, sinks_.empty() ? nullptr : sinks_.data(), q_, y_});
    }

    std::vector<float> sinks_;
    int64_t layer_, heads_;
    float scale_;
    Reach reach_;
    float cap_;
    Slot q_, k_, v_, y_;
};

// Attention of `turned` queries, which it makes of q; the turned keys go straight into the cache.
class RopeAttentionOp : public AttentionOp {
  public:
    RopeAttentionOp(Rotation rotation, std::vector<float> sinks, int64_t layer, int64_t heads,
                    float scale, Reach reach, float cap, Slot q, Slot k, Slot v, Slot turned,
                    Slot y)
        : AttentionOp(std::move(sinks), layer, heads, scale, reach, cap, turned, k, v, y),
          rotation_(std::move(rotation)),
          unturned_(q) {}

    void check(Execution& e) override {
        AttentionOp::check(e);
        const Cache& cache = e.runtime.cache(layer_);
        rotation_.check(cache.key_dim);
        e.check_floats_read(unturned_, heads_ * cache.key_dim);
        angles_ = e.angles_for(rotation_);
        e.runtime.need_scratch(4 * cache.kv_heads * cache.key_dim);  // turned keys
    }

    void run(Execution& e) const override {
        const Cache& cache = e.runtime.cache(layer_);
        const Tables tables = e.tables_of(layer_);
        const int64_t width = heads_ * cache.key_dim, key_width = cache.kv_heads * cache.key_dim;
        e.each_row(width + key_width + write_width(cache), [&](int64_t r, int thread) {
            e.turn(angles_, r, e.row(unturned_, r), width, cache.key_dim, e.row(q_, r));
            auto* keys = reinterpret_cast<float*>(e.runtime.scratch(thread));
            e.turn(angles_, r, e.row(k_, r), key_width, cache.key_dim, keys);
            write_kv(e, cache, tables, r, keys, e.row(v_, r));
        });
        attend(e);
    }

  private:
    Rotation rotation_;
    int angles_ = 0;  // which table of the step
    Slot unturned_;
};

}  // namespace

OpPtr make_attention(MaybeValues sinks, int64_t layer, int64_t heads, float scale, int64_t window,
                     bool chunked, float cap, Slot q, Slot k, Slot v, Slot y) {
    return std::make_unique<AttentionOp>(std::move(sinks).value_or(Values()), layer, heads, scale,
                                         Reach{window, chunked}, cap, q, k, v, y);
}

OpPtr make_rope_attention(std::vector<double> inv_freq, float rope_scale, bool adjacent,
                          MaybeValues sinks, int64_t layer, int64_t heads, float scale,
                          int64_t window, bool chunked, float cap, Slot q, Slot k, Slot v,
                          Slot turned, Slot y) {
    Rotation rotation = {Values(inv_freq.begin(), inv_freq.end()), rope_scale, adjacent};
    return std::make_unique<RopeAttentionOp>(
        std::move(rotation), std::move(sinks).value_or(Values()), layer, heads, scale,
        Reach{window, chunked}, cap, q, k, v, turned, y);
}

}  // namespace galley
