// Causal attention over the paged cache.
#include "attend.hpp"
#include "bind.hpp"

namespace galley {
namespace {

class AttentionOp : public Op {
  public:
    AttentionOp(int64_t layer, int64_t heads, float scale, int64_t window, float cap, Slot q,
                Slot k, Slot v, Slot y)
        : layer_(layer),
          heads_(heads),
          scale_(scale),
          window_(window),
          cap_(cap),
          q_(q),
          k_(k),
          v_(v),
          y_(y) {}

    void check(Execution& e) override {
        const Cache& cache = checked_layer(e, layer_);
        require(window_ >= 0, "a window is negative");
        require(cap_ >= 0, "a cap is negative");
        check_kv(e, cache, k_, v_);
        check_attention(e, cache, heads_, q_, y_);
    }

    void run(Execution& e) const override {
        write_all_kv(e, e.runtime.cache(layer_), e.tables_of(layer_), k_, v_);
        attend(e);
    }

  protected:
    void attend(Execution& e) const {
        attend_all(e, {e.runtime.cache(layer_), e.tables_of(layer_), e.plan, heads_, scale_,
                       window_, cap_, q_, y_});
    }

    int64_t layer_, heads_;
    float scale_;
    int64_t window_;
    float cap_;
    Slot q_, k_, v_, y_;
};

// Attention of `turned` queries, which it makes of q; the turned keys go straight into the cache.
class RopeAttentionOp : public AttentionOp {
  public:
    RopeAttentionOp(std::vector<float> inv_freq, float rope_scale, int64_t layer, int64_t heads,
                    float scale, int64_t window, float cap, Slot q, Slot k, Slot v, Slot turned,
                    Slot y)
        : AttentionOp(layer, heads, scale, window, cap, turned, k, v, y),
          inv_freq_(std::move(inv_freq)),
          rope_scale_(rope_scale),
          unturned_(q) {}

    void check(Execution& e) override {
        AttentionOp::check(e);
        const Cache& cache = e.runtime.cache(layer_);
        require(!inv_freq_.empty() && 2 * static_cast<int64_t>(inv_freq_.size()) <= cache.key_dim,
                "there are more angles than a key has pairs, or none");
        e.check_floats_read(unturned_, heads_ * cache.key_dim);
        angles_ = e.angles_for(inv_freq_, rope_scale_);
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
    std::vector<float> inv_freq_;
    float rope_scale_;
    int angles_ = 0;  // which table of the step
    Slot unturned_;
};

}  // namespace

void bind_attention(ProgramClass& program) {
    program.def("attention",
                [](Program& p, int64_t layer, int64_t heads, float scale, int64_t window, float cap,
                   SlotFields q, SlotFields k, SlotFields v, SlotFields y) {
                    append<AttentionOp>(p, layer, heads, scale, window, cap, slot(q), slot(k),
                                        slot(v), slot(y));
                });
    program.def("rope_attention", [](Program& p, std::vector<float> inv_freq, float rope_scale,
                                     int64_t layer, int64_t heads, float scale, int64_t window,
                                     float cap, SlotFields q, SlotFields k, SlotFields v,
                                     SlotFields turned, SlotFields y) {
        append<RopeAttentionOp>(p, std::move(inv_freq), rope_scale, layer, heads, scale, window,
                                cap, slot(q), slot(k), slot(v), slot(turned), slot(y));
    });
}

}  // namespace galley
