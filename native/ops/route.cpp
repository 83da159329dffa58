// Which experts a row goes to, and the gate of a shared one.
#include <algorithm>
#include <cmath>
#include <string>

#include "ops/ops.hpp"

namespace galley {
namespace {

struct Routing {
    int64_t experts, per_token;
    bool sigmoid, normalize;
    float factor;
    int64_t groups, kept_groups, group_best;
};

// Takes numbers [0, count) of the greatest, greatest first, the lower of equals. What is taken is
// marked; body(number) for each.
template <class Body>
void take_greatest(const float* values, int32_t* taken, int64_t count, int64_t wanted,
                   const Body& body) {
    for (int64_t i = 0; i < wanted; ++i) {
        int64_t best = -1;
        for (int64_t n = 0; n < count; ++n)
            if (!taken[n] && (best < 0 || values[n] > values[best])) best = n;
        taken[best] = 1;
        body(best);
    }
}

class RouteOp : public Op {
  public:
    // `bias`: of each expert, or empty.
    RouteOp(std::vector<float> bias, Routing routing, Slot x, Slot y)
        : bias_(std::move(bias)), routing_(routing), x_(x), y_(y) {}

    void check(Execution& e) override {
        const Routing& o = routing_;
        require(o.experts > 0 && o.groups > 0 && o.experts % o.groups == 0,
                "experts are no whole groups");
        const int64_t size = o.experts / o.groups;
        require(o.kept_groups > 0 && o.kept_groups <= o.groups,
                "more groups are kept than there are");
        require(o.group_best > 0 && o.group_best <= size, "a group has not so many experts");
        require(o.per_token > 0 && o.per_token <= size * o.kept_groups,
                "more experts are chosen than there are");
        require(bias_.empty() || static_cast<int64_t>(bias_.size()) == o.experts,
                "bias has the wrong size");
        e.check_floats_read(x_, o.experts);
        e.check_floats_written(y_, 2 * o.per_token);
        e.runtime.need_scratch(4 * (3 * o.experts + 2 * o.groups));
    }

    void run(Execution& e) const override {
        e.each_row(routing_.experts * (8 + routing_.per_token), [&](int64_t r, int thread) {
            route(e.row(x_, r), reinterpret_cast<float*>(e.runtime.scratch(thread)), e.row(y_, r));
        });
    }

  private:
    void route(const float* logits, float* scratch, float* y) const {
        const Routing& o = routing_;
        const int64_t k = o.per_token;
        float *scores = scratch, *keys = scores + o.experts, *group_keys = keys + o.experts;
        auto* taken = reinterpret_cast<int32_t*>(group_keys + o.groups);
        score(logits, scores);
        for (int64_t n = 0; n < o.experts; ++n)
            keys[n] = bias_.empty() ? scores[n] : scores[n] + bias_[n];
        std::fill_n(taken, o.experts, 0);
        if (o.kept_groups < o.groups) leave_groups(keys, group_keys, taken);
        int64_t chosen = 0;
        float sum = 0.0f;
        take_greatest(keys, taken, o.experts, k, [&](int64_t n) {
            y[chosen] = static_cast<float>(n);
            y[k + chosen++] = scores[n];
            sum += scores[n];
        });
        for (int64_t i = k; i < 2 * k; ++i) {
            if (o.normalize) y[i] /= sum;
            y[i] *= o.factor;
        }
    }

    void score(const float* logits, float* scores) const {
        const int64_t count = routing_.experts;
        if (routing_.sigmoid) {
            for (int64_t n = 0; n < count; ++n) scores[n] = 1.0f / (1.0f + std::exp(-logits[n]));
            return;
        }
        const float most = *std::max_element(logits, logits + count);
        float sum = 0.0f;
        for (int64_t n = 0; n < count; ++n) sum += scores[n] = std::exp(logits[n] - most);
        for (int64_t n = 0; n < count; ++n) scores[n] /= sum;
    }

    // Marks the experts of all groups but the kept ones.
    void leave_groups(const float* keys, float* group_keys, int32_t* taken) const {
        const Routing& o = routing_;
        const int64_t size = o.experts / o.groups;
        int32_t* groups_taken = taken + o.experts;
        for (int64_t g = 0; g < o.groups; ++g) {
            float sum = 0.0f;
            take_greatest(keys + g * size, taken + g * size, size, o.group_best,
                          [&](int64_t n) { sum += keys[g * size + n]; });
            group_keys[g] = sum;
        }
        std::fill_n(taken, o.experts, 1);
        std::fill_n(groups_taken, o.groups, 0);
        take_greatest(group_keys, groups_taken, o.groups, o.kept_groups,
                      [&](int64_t g) { std::fill_n(taken + g * size, size, 0); });
    }

    std::vector<float> bias_;
    Routing routing_;
    Slot x_, y_;
};

class SigmoidScaleOp : public Op {
  public:
    SigmoidScaleOp(int64_t width, Slot x, Slot gate, Slot y)
        : width_(width), x_(x), gate_(gate), y_(y) {}

    void check(Execution& e) override {
        require(width_ > 0, "a buffer has no columns");
        scale_ = e.kernels.elementwise_named("scale");
        e.check_floats_read(x_, width_);
        e.check_floats_read(gate_, 1);
        e.check_floats_written(y_, width_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            const float open = 1.0f / (1.0f + std::exp(-*e.row(gate_, r)));
            scale_->run(e.row(x_, r), nullptr, open, width_, e.row(y_, r));
        });
    }

  private:
    int64_t width_;
    const Elementwise* scale_ = nullptr;
    Slot x_, gate_, y_;
};

bool is_sigmoid(const std::string& scores) {
    require(scores == "sigmoid" || scores == "softmax", "scores are neither softmax nor sigmoid");
    return scores == "sigmoid";
}

}  // namespace

OpPtr make_route(MaybeValues bias, int64_t experts, int64_t per_token, std::string scores,
                 bool normalize, float factor, int64_t groups, int64_t kept_groups,
                 int64_t group_best, Slot x, Slot y) {
    const Routing routing = {experts, per_token, is_sigmoid(scores), normalize,
                             factor,  groups,    kept_groups,        group_best};
    return std::make_unique<RouteOp>(std::move(bias).value_or(Values()), routing, x, y);
}

OpPtr make_sigmoid_scale(int64_t width, Slot x, Slot gate, Slot y) {
    return std::make_unique<SigmoidScaleOp>(width, x, gate, y);
}

}  // namespace galley
