// RMS norms and layer norms, alone or of a sum.
#include "ops/ops.hpp"

namespace galley {
namespace {

struct Norm {
    std::vector<float> weight;
    std::vector<float> bias;  // a layer norm's; empty for none
    float eps;
    int64_t width;
    int64_t layer_group;  // of a layer norm; 0 for an RMS norm
    SharedLayout layout;  // of the result; null: floats

    void check(Execution& e, const Slot& x, const Slot& y) const {
        require(!weight.empty() && width % static_cast<int64_t>(weight.size()) == 0,
                "a norm's weights do not divide its width");
        require(layer_group == 0 || (layer_group > 0 && width % layer_group == 0),
                "normed heads do not divide the width");
        e.check_floats_read(x, width);
        e.check_made(layout, y, width);
    }

    void run(const Kernels& kernels, const float* x, float* y) const {
        if (layer_group == 0)
            kernels.rms_norm(x, weight.data(), eps, width, weight.size(), y);
        else
            kernels.layer_norm(x, weight.data(), bias.empty() ? nullptr : bias.data(), eps, width,
                               layer_group, y);
    }
};

class NormOp : public Op {
  public:
    NormOp(Norm norm, Slot x, Slot y) : norm_(std::move(norm)), x_(x), y_(y) {}

    void check(Execution& e) override { norm_.check(e, x_, y_); }

    void run(Execution& e) const override {
        e.each_row_made(norm_.layout, norm_.width, y_,
                        [&](int64_t r, float* y) { norm_.run(e.kernels, e.row(x_, r), y); });
    }

  private:
    Norm norm_;
    Slot x_, y_;
};

class AddNormOp : public Op {
  public:
    AddNormOp(Norm norm, Slot a, Slot b, Slot sum, Slot y)
        : norm_(std::move(norm)), a_(a), b_(b), sum_(sum), y_(y) {}

    void check(Execution& e) override {
        e.check_floats_read(a_, norm_.width);
        e.check_floats_read(b_, norm_.width);
        e.check_floats_written(sum_, norm_.width);
        norm_.check(e, sum_, y_);
        add_ = e.kernels.elementwise_named("add");
    }

    void run(Execution& e) const override {
        e.each_row_made(norm_.layout, 2 * norm_.width, y_, [&](int64_t r, float* y) {
            float* sum = e.row(sum_, r);
            add_->run(e.row(a_, r), e.row(b_, r), 0.0f, norm_.width, sum);
            norm_.run(e.kernels, sum, y);
        });
    }

  private:
    Norm norm_;
    const Elementwise* add_ = nullptr;
    Slot a_, b_, sum_, y_;
};

Norm rms_norm(Values weight, float eps, int64_t width, SharedLayout layout) {
    return {std::move(weight), {}, eps, width, 0, std::move(layout)};
}

Norm layer_norm(Values weight, MaybeValues bias, float eps, int64_t head_dim, SharedLayout layout) {
    require(!bias || bias->size() == weight.size(), "bias has the wrong size");
    require(head_dim > 0, "normed heads do not divide the width");
    const auto width = static_cast<int64_t>(weight.size());
    return {std::move(weight), std::move(bias).value_or(Values()), eps, width, head_dim,
            std::move(layout)};
}

}  // namespace

OpPtr make_rms_norm(Values weight, float eps, int64_t width, SharedLayout layout, Slot x, Slot y) {
    return std::make_unique<NormOp>(rms_norm(std::move(weight), eps, width, std::move(layout)), x,
                                    y);
}

OpPtr make_add_rms_norm(Values weight, float eps, int64_t width, SharedLayout layout, Slot a,
                        Slot b, Slot sum, Slot y) {
    return std::make_unique<AddNormOp>(rms_norm(std::move(weight), eps, width, std::move(layout)),
                                       a, b, sum, y);
}

OpPtr make_layer_norm(Values weight, MaybeValues bias, float eps, int64_t head_dim,
                      SharedLayout layout, Slot x, Slot y) {
    return std::make_unique<NormOp>(
        layer_norm(std::move(weight), std::move(bias), eps, head_dim, std::move(layout)), x, y);
}

OpPtr make_add_layer_norm(Values weight, MaybeValues bias, float eps, int64_t head_dim,
                          SharedLayout layout, Slot a, Slot b, Slot sum, Slot y) {
    return std::make_unique<AddNormOp>(
        layer_norm(std::move(weight), std::move(bias), eps, head_dim, std::move(layout)), a, b, sum,
        y);
}

}  // namespace galley
