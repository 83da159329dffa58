// Linear layers, and what their inputs become.
#include <algorithm>

#include "ops/ops.hpp"

namespace galley {
namespace {

constexpr int64_t kCoreCache = 512 << 10;

class QuantizeInputOp : public Op {
  public:
    QuantizeInputOp(SharedLayout layout, Slot x, Slot y)
        : layout_(std::move(layout)), x_(x), y_(y) {}

    void check(Execution& e) override {
        e.check_floats_read(x_, layout_->matrix().depth);
        e.check_written(y_, layout_->row_bytes());
    }

    void run(Execution& e) const override {
        const InputLayout& layout = *layout_;
        e.each_row(layout.matrix().depth, [&](int64_t r, int) {
            layout.write(e.kernels, e.row(x_, r), e.at(y_) + r * y_.stride);
        });
    }

  private:
    SharedLayout layout_;
    Slot x_, y_;
};

class LinearOp : public Op {
  public:
    // `bias`: empty, or padded to whole blocks. `layout`: of x; null: floats.
    LinearOp(Weights weight, std::vector<float> bias, SharedLayout layout, Slot x, Slot y)
        : weight_(std::move(weight)),
          bias_(std::move(bias)),
          layout_(std::move(layout)),
          x_(x),
          y_(y) {}

    void check(Execution& e) override {
        const Matrix& m = weight_->matrix();
        require(!layout_ || layout_->suits(m), "x is quantized for other weights");
        e.check_read(x_, layout_ ? layout_->row_bytes() : 4 * m.depth);
        e.check_floats_written(y_, m.outputs);
        if (layout_ || m.kind == Kind::kF16) e.runtime.need_scratch(kLinearScratch);
    }

    void run(Execution& e) const override {
        const Matrix& m = weight_->matrix();
        const int64_t sums = layout_ ? layout_->sums() : 0;
        const Inputs inputs = layout_ ? layout_->inputs() : Inputs::kFloats;
        const Linear linear = {&m,
                               {e.at(x_), x_.stride, sums, inputs},
                               bias_.empty() ? nullptr : bias_.data(),
                               e.row(y_, 0),
                               y_.stride / static_cast<int64_t>(sizeof(float)),
                               e.rows};
        const int64_t blocks = round_up(m.outputs, kLanes) / kLanes;
        // Each item reads all rows: those that no cache of a core holds are read by fewer.
        const bool few = e.rows * x_.stride <= kCoreCache;
        const int64_t even = blocks / (4 * e.pool.threads()) / kBlocksPerItem * kBlocksPerItem;
        const int64_t grain = few ? kBlocksPerItem : std::clamp(even, kBlocksPerItem, kMostBlocks);
        e.pool.run(blocks, grain, [&](int64_t begin, int64_t end, int thread) {
            e.kernels.linear(linear, begin, end, e.runtime.scratch(thread));
        });
    }

  private:
    Weights weight_;
    std::vector<float> bias_;
    SharedLayout layout_;
    Slot x_, y_;
};

}  // namespace

OpPtr make_quantize_input(SharedLayout layout, Slot x, Slot y) {
    return std::make_unique<QuantizeInputOp>(std::move(layout), x, y);
}

OpPtr make_linear(Weights weight, MaybeValues bias, SharedLayout layout, Slot x, Slot y) {
    Values padded;
    if (bias) {
        const int64_t outputs = weight->matrix().outputs;
        require(static_cast<int64_t>(bias->size()) == outputs, "bias has the wrong size");
        padded = std::move(*bias);
        padded.resize(round_up(outputs, kLanes));
    }
    return std::make_unique<LinearOp>(std::move(weight), std::move(padded), std::move(layout), x,
                                      y);
}

}  // namespace galley
