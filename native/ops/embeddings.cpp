// Rows of a table, by token id, by type of token or by position.
#include <algorithm>
#include <cstring>

#include "ops/ops.hpp"

namespace galley {
namespace {

class EmbedOp : public Op {
  public:
    EmbedOp(Weights weight, Slot y) : weight_(std::move(weight)), y_(y) {}

    void check(Execution& e) override {
        e.check_floats_written(y_, weight_->matrix().depth);
        e.limits.tokens = std::min(e.limits.tokens, weight_->matrix().outputs);
    }

    void run(Execution& e) const override {
        const Matrix& m = weight_->matrix();
        e.each_row(m.depth,
                   [&](int64_t r, int) { e.kernels.embed(m, e.step.tokens[r], e.row(y_, r)); });
    }

  private:
    Weights weight_;
    Slot y_;
};

class EmbedPositionsOp : public Op {
  public:
    // `weight`: [positions][width], of which row `first` is that of position 0.
    EmbedPositionsOp(std::vector<float> weight, int64_t first, int64_t width, Slot y)
        : weight_(std::move(weight)), first_(first), width_(width), y_(y) {}

    void check(Execution& e) override {
        const auto size = static_cast<int64_t>(weight_.size());
        require(width_ > 0 && size % width_ == 0, "a table of positions has no whole rows");
        e.check_floats_written(y_, width_);
        require(first_ >= 0 && first_ < size / width_, "a table has no row of position 0");
        e.limits.positions = std::min(e.limits.positions, size / width_ - first_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            std::memcpy(e.row(y_, r), weight_.data() + (first_ + e.step.positions[r]) * width_,
                        width_ * sizeof(float));
        });
    }

  private:
    std::vector<float> weight_;
    int64_t first_, width_;
    Slot y_;
};

class EmbedTypesOp : public Op {
  public:
    // `weight`: [types][width].
    EmbedTypesOp(std::vector<float> weight, int64_t width, Slot y)
        : weight_(std::move(weight)), width_(width), y_(y) {}

    void check(Execution& e) override {
        const auto size = static_cast<int64_t>(weight_.size());
        require(width_ > 0 && size > 0 && size % width_ == 0, "a table of types has no whole rows");
        e.check_floats_written(y_, width_);
        e.limits.types = std::min(e.limits.types, size / width_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            const int64_t type = e.step.types ? e.step.types[r] : 0;
            std::memcpy(e.row(y_, r), weight_.data() + type * width_, width_ * sizeof(float));
        });
    }

  private:
    std::vector<float> weight_;
    int64_t width_;
    Slot y_;
};

}  // namespace

OpPtr make_embed(Weights weight, Slot y) { return std::make_unique<EmbedOp>(std::move(weight), y); }

OpPtr make_embed_positions(Values weight, int64_t first, int64_t width, Slot y) {
    return std::make_unique<EmbedPositionsOp>(std::move(weight), first, width, y);
}

OpPtr make_embed_types(Values weight, int64_t width, Slot y) {
    return std::make_unique<EmbedTypesOp>(std::move(weight), width, y);
}

}  // namespace galley
