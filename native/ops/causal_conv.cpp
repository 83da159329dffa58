// A convolution over a sequence's last rows, each channel by itself.
#include <algorithm>
#include <cstring>

#include "ops/ops.hpp"

namespace galley {
namespace {

// The state of a sequence is its last rows, as many as the kernel has but one.
class CausalConvOp : public Op {
  public:
    // `weight`: [width][size]; `bias`: [width], or empty.
    CausalConvOp(const std::vector<float>& weight, std::vector<float> bias, int64_t layer,
                 int64_t size, int64_t width, Slot x, Slot y)
        : bias_(std::move(bias)), layer_(layer), size_(size), width_(width), x_(x), y_(y) {
        require(size > 1 && width > 0, "a convolution sees two rows at least");
        require(static_cast<int64_t>(weight.size()) == size * width,
                "a convolution has not one kernel for each channel");
        weights_.resize(weight.size());
        for (int64_t c = 0; c < width; ++c)
            for (int64_t j = 0; j < size; ++j) weights_[j * width + c] = weight[c * size + j];
        zeros_.resize(width);
    }

    void check(Execution& e) override {
        require(layer_ >= 0 && layer_ < e.runtime.state_layers(), "a state is out of range");
        const Runtime::StateLayer& state = e.runtime.state(layer_);
        require(state.rows == size_ - 1 && state.width == width_,
                "a state has not the rows that a convolution looks back to");
        require(bias_.empty() || static_cast<int64_t>(bias_.size()) == width_,
                "bias has the wrong size");
        e.check_floats_read(x_, width_);
        e.check_floats_written(y_, width_);
        e.limits.recurs = true;
    }

    // Sequences in order: one may go on from a state that one before it leaves in this step.
    void run(Execution& e) const override {
        constexpr int64_t kChannels = 128;  // of one unit of work
        const int64_t items = (width_ + kChannels - 1) / kChannels;
        e.pool.run(items, 1, [&](int64_t begin, int64_t end, int) {
            const int64_t first = begin * kChannels, last = std::min(end * kChannels, width_);
            std::vector<const float*> seen(size_);
            for (int64_t s = 0; s < e.step.sequences; ++s) run(e, s, first, last - first, seen);
        });
    }

  private:
    // The channels from `first` on of all rows of sequence s; `seen` has room for `size_` rows.
    void run(const Execution& e, int64_t s, int64_t first, int64_t channels,
             std::vector<const float*>& seen) const {
        const Runtime::StateLayer& state = e.runtime.state(layer_);
        const int64_t *states = e.step.states.of(s), size = e.step.states.size(s);
        const int64_t begin = e.step.starts[s], rows = e.step.starts[s + 1] - begin;
        const float* past = states[0] < 0 ? nullptr : state.at(states[0]) + first;
        // Row r of the sequence in this step; those before it are in the state.
        const auto row = [&](int64_t r) -> const float* {
            if (r >= 0) return e.row(x_, begin + r) + first;
            return past ? past + (size_ - 1 + r) * state.stride : zeros_.data();
        };
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t j = 0; j < size_; ++j) seen[j] = row(r + j - size_ + 1);
            e.kernels.causal_conv({seen.data(), weights_.data() + first,
                                   bias_.empty() ? nullptr : bias_.data() + first,
                                   e.row(y_, begin + r) + first, size_, width_, channels});
        }
        // The last state may lie where the first one was: its rows move up.
        for (int64_t i = 1; i < size; i += 2) {
            float* to = state.at(states[i + 1]) + first;
            for (int64_t j = 0; j < size_ - 1; ++j)
                std::memmove(to + j * state.stride, row(states[i] + j - size_ + 1),
                             channels * sizeof(float));
        }
    }

    std::vector<float> weights_;  // [size][width]
    std::vector<float> bias_, zeros_;
    int64_t layer_, size_, width_;
    Slot x_, y_;
};

}  // namespace

OpPtr make_causal_conv(Values weight, MaybeValues bias, int64_t state, int64_t size, int64_t width,
                       Slot x, Slot y) {
    return std::make_unique<CausalConvOp>(weight, std::move(bias).value_or(Values()), state, size,
                                          width, x, y);
}

}  // namespace galley
