// What turns a convolution over an encoder input's rows into a linear layer.
#include "ops/ops.hpp"

namespace galley {
namespace {

class Im2colOp : public Op {
  public:
    Im2colOp(int64_t channels, int64_t size, int64_t stride, Slot x, Slot y)
        : channels_(channels), size_(size), stride_(stride), x_(x), y_(y) {}

    void check(Execution& e) override {
        require(channels_ > 0 && size_ > 0 && stride_ > 0, "a convolution has no size");
        e.check_floats_read(x_, channels_);
        e.check_floats_written(y_, channels_ * size_);
        e.limits.strides.push_back(stride_);
    }

    void run(Execution& e) const override {
        const std::vector<int64_t>& starts = e.finer_starts = e.input_starts;
        for (int64_t input = 0; input < e.step.sequences; ++input) {
            const int64_t rows = (starts[input + 1] - starts[input] + stride_ - 1) / stride_;
            e.input_starts[input + 1] = e.input_starts[input] + rows;
        }
        e.take_inputs();
        e.each_row(2 * channels_ * size_, [&](int64_t r, int) {
            const int64_t input = e.sequence_of[r];
            const int64_t first = starts[input] + e.step.positions[r] * stride_ - size_ / 2;
            float* y = e.row(y_, r);
            for (int64_t t = 0; t < size_; ++t) {
                const bool inside = first + t >= starts[input] && first + t < starts[input + 1];
                const float* x = inside ? e.row(x_, first + t) : nullptr;
                for (int64_t j = 0; j < channels_; ++j) y[j * size_ + t] = inside ? x[j] : 0.0f;
            }
        });
    }

  private:
    int64_t channels_, size_, stride_;
    Slot x_, y_;
};

}  // namespace

OpPtr make_im2col(int64_t channels, int64_t size, int64_t stride, Slot x, Slot y) {
    return std::make_unique<Im2colOp>(channels, size, stride, x, y);
}

}  // namespace galley
