// Layers whose heads keep a matrix [key_dim][width] of all tokens so far: Mamba-2's and the gated
// delta rule's.
#include <algorithm>
#include <cmath>

#include "ops/ops.hpp"

namespace galley {
namespace {

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// How fast a head forgets: by exp(-exp(a_log) * softplus(x + bias)).
struct Decay {
    std::vector<float> rates;  // exp(a_log), of each head
    std::vector<float> bias;

    Decay(Values a_log, Values dt_bias) : rates(std::move(a_log)), bias(std::move(dt_bias)) {
        for (float& rate : rates) rate = std::exp(rate);
    }
    float step(int64_t head, float x) const { return softplus(x + bias[head]); }
    float of(int64_t head, float step) const { return std::exp(-rates[head] * step); }
};

// Heads and columns are independent; tokens go one after another, and sequences in order, as one
// may go on from a state that one before it leaves in this step.
class RecurrenceOp : public Op {
  public:
    RecurrenceOp(Decay decay, int64_t layer, int64_t heads, int64_t groups, Slot q, Slot k, Slot v,
                 Slot a, Slot y)
        : decay_(std::move(decay)),
          layer_(layer),
          heads_(heads),
          groups_(groups),
          q_(q),
          k_(k),
          v_(v),
          a_(a),
          y_(y) {}

    void check(Execution& e) override {
        require(layer_ >= 0 && layer_ < e.runtime.state_layers(), "a state is out of range");
        const Runtime::StateLayer& state = e.runtime.state(layer_);
        require(heads_ > 0 && groups_ > 0 && heads_ % groups_ == 0 && state.rows % heads_ == 0,
                "heads do not share keys and queries evenly");
        key_dim_ = state.rows / heads_;
        width_ = state.width;
        require(static_cast<int64_t>(decay_.rates.size()) == heads_ &&
                    static_cast<int64_t>(decay_.bias.size()) == heads_,
                "there is not one decay for each head");
        e.check_floats_read(q_, groups_ * key_dim_);
        e.check_floats_read(k_, groups_ * key_dim_);
        e.check_floats_read(v_, heads_ * width_);
        e.check_floats_read(a_, heads_);
        e.check_floats_written(y_, heads_ * width_);
        e.limits.recurs = true;
    }

    void run(Execution& e) const override {
        constexpr int64_t kColumns = 64;  // of one unit of work
        const int64_t parts = (width_ + kColumns - 1) / kColumns;
        e.pool.run(heads_ * parts, 1, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t first = i % parts * kColumns;
                const int64_t columns = std::min(kColumns, width_ - first);
                for (int64_t s = 0; s < e.step.sequences; ++s) run(e, s, i / parts, first, columns);
            }
        });
    }

  protected:
    // What a row says of a head: decay, beta, skip and delta.
    virtual void weigh(const Execution& e, int64_t row, int64_t head, Recurrence& r) const = 0;

    Decay decay_;
    int64_t layer_, heads_, groups_, key_dim_ = 0, width_ = 0;
    Slot q_, k_, v_, a_, y_;

  private:
    void run(const Execution& e, int64_t s, int64_t head, int64_t first, int64_t columns) const {
        const Runtime::StateLayer& state = e.runtime.state(layer_);
        const int64_t *states = e.step.states.of(s), begin = e.step.starts[s];
        const auto at = [&](int64_t slot) {
            return slot < 0 ? nullptr : state.at(slot) + head * key_dim_ * state.stride + first;
        };
        const int64_t keys = head / (heads_ / groups_) * key_dim_, values = head * width_ + first;
        Recurrence r{};
        r.stride = state.stride;
        r.key_dim = key_dim_;
        r.width = columns;
        r.from = at(states[0]);
        int64_t row = 0;
        for (int64_t i = 1; i < e.step.states.size(s); i += 2) {
            r.to = at(states[i + 1]);
            for (; row < states[i]; ++row) {
                r.q = e.row(q_, begin + row) + keys;
                r.k = e.row(k_, begin + row) + keys;
                r.v = e.row(v_, begin + row) + values;
                r.y = e.row(y_, begin + row) + values;
                weigh(e, begin + row, head, r);
                e.kernels.recur(r);
                r.from = r.to;
            }
        }
    }
};

class SsmOp : public RecurrenceOp {
  public:
    SsmOp(Decay decay, std::vector<float> skip, int64_t layer, int64_t heads, int64_t groups,
          Slot x, Slot b, Slot c, Slot dt, Slot y)
        : RecurrenceOp(std::move(decay), layer, heads, groups, c, b, x, dt, y),
          skip_(std::move(skip)) {}

    void check(Execution& e) override {
        RecurrenceOp::check(e);
        require(static_cast<int64_t>(skip_.size()) == heads_,
                "there is not one skip for each head");
    }

  protected:
    void weigh(const Execution& e, int64_t row, int64_t head, Recurrence& r) const override {
        r.beta = decay_.step(head, e.row(a_, row)[head]);
        r.decay = decay_.of(head, r.beta);
        r.skip = skip_[head];
    }

  private:
    std::vector<float> skip_;
};

class DeltaRuleOp : public RecurrenceOp {
  public:
    DeltaRuleOp(Decay decay, int64_t layer, int64_t heads, int64_t groups, Slot q, Slot k, Slot v,
                Slot a, Slot b, Slot y)
        : RecurrenceOp(std::move(decay), layer, heads, groups, q, k, v, a, y), b_(b) {}

    void check(Execution& e) override {
        RecurrenceOp::check(e);
        e.check_floats_read(b_, heads_);
    }

  protected:
    void weigh(const Execution& e, int64_t row, int64_t head, Recurrence& r) const override {
        r.decay = decay_.of(head, decay_.step(head, e.row(a_, row)[head]));
        r.beta = 1.0f / (1.0f + std::exp(-e.row(b_, row)[head]));
        r.delta = true;
    }

  private:
    Slot b_;
};

}  // namespace

OpPtr make_ssm(Values a_log, Values dt_bias, Values skip, int64_t state, int64_t heads,
               int64_t groups, Slot x, Slot b, Slot c, Slot dt, Slot y) {
    return std::make_unique<SsmOp>(Decay(std::move(a_log), std::move(dt_bias)), std::move(skip),
                                   state, heads, groups, x, b, c, dt, y);
}

OpPtr make_delta_rule(Values a_log, Values dt_bias, int64_t state, int64_t heads, int64_t groups,
                      Slot q, Slot k, Slot v, Slot a, Slot b, Slot y) {
    return std::make_unique<DeltaRuleOp>(Decay(std::move(a_log), std::move(dt_bias)), state, heads,
                                         groups, q, k, v, a, b, y);
}

}  // namespace galley
