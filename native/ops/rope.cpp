// What depends on a row's position: rotations (arXiv:2104.09864), and scales.
#include <cmath>

#include "ops/ops.hpp"

namespace galley {
namespace {

class RopeOp : public Op {
  public:
    RopeOp(Rotation rotation, int64_t head_dim, int64_t width, Slot x, Slot y)
        : rotation_(std::move(rotation)), head_dim_(head_dim), width_(width), x_(x), y_(y) {}

    void check(Execution& e) override {
        require(head_dim_ > 0 && width_ % head_dim_ == 0, "rotated heads do not divide the width");
        rotation_.check(head_dim_);
        e.check_floats_read(x_, width_);
        e.check_floats_written(y_, width_);
        angles_ = e.angles_for(rotation_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            e.turn(angles_, r, e.row(x_, r), width_, head_dim_, e.row(y_, r));
        });
    }

  private:
    Rotation rotation_;
    int64_t head_dim_, width_;
    int angles_ = 0;  // which table of the step
    Slot x_, y_;
};

// Queries that are scaled by their position, as Llama 4's are.
class ScaleQueriesOp : public Op {
  public:
    ScaleQueriesOp(int64_t interval, float factor, int64_t width, Slot x, Slot y)
        : interval_(interval), factor_(factor), width_(width), x_(x), y_(y) {}

    void check(Execution& e) override {
        require(interval_ > 0, "an interval is not positive");
        e.check_floats_read(x_, width_);
        e.check_floats_written(y_, width_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            const auto steps = static_cast<float>((e.step.positions[r] + 1) / interval_);
            const float scale = std::log1p(steps) * factor_ + 1.0f;
            const float* x = e.row(x_, r);
            float* y = e.row(y_, r);
            for (int64_t i = 0; i < width_; ++i) y[i] = x[i] * scale;
        });
    }

  private:
    int64_t interval_;
    float factor_;
    int64_t width_;
    Slot x_, y_;
};

}  // namespace

OpPtr make_rope(std::vector<double> inv_freq, float scale, bool adjacent, int64_t head_dim,
                int64_t width, Slot x, Slot y) {
    return std::make_unique<RopeOp>(
        Rotation{Values(inv_freq.begin(), inv_freq.end()), scale, adjacent}, head_dim, width, x, y);
}

OpPtr make_scale_queries_by_position(int64_t interval, float factor, int64_t width, Slot x,
                                     Slot y) {
    return std::make_unique<ScaleQueriesOp>(interval, factor, width, x, y);
}

}  // namespace galley
