// RMS norms and layer norms, alone or of a sum.
#include "bind.hpp"

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

Norm rms_norm(const Floats& weight, float eps, int64_t width, SharedInputs layout) {
    return {to_vector(weight), {}, eps, width, 0, std::move(layout)};
}

Norm layer_norm(const Floats& weight, const std::optional<Floats>& bias, float eps,
                int64_t head_dim, SharedInputs layout) {
    require(!bias || bias->size() == weight.size(), "bias has the wrong size");
    require(head_dim > 0, "normed heads do not divide the width");
    const auto width = static_cast<int64_t>(weight.size());
    return {to_vector(weight), bias ? to_vector(*bias) : std::vector<float>{}, eps, width, head_dim,
            std::move(layout)};
}

}  // namespace

void bind_norms(ProgramClass& program) {
    using namespace nanobind::literals;
    program.def(
        "rms_norm",
        [](Program& p, const Floats& weight, float eps, int64_t width, SharedInputs layout,
           SlotFields x, SlotFields y) {
            append<NormOp>(p, rms_norm(weight, eps, width, layout), slot(x), slot(y));
        },
        "weight"_a, "eps"_a, "width"_a, "layout"_a.none(), "x"_a, "y"_a);
    program.def(
        "add_rms_norm",
        [](Program& p, const Floats& weight, float eps, int64_t width, SharedInputs layout,
           SlotFields a, SlotFields b, SlotFields sum, SlotFields y) {
            append<AddNormOp>(p, rms_norm(weight, eps, width, layout), slot(a), slot(b), slot(sum),
                              slot(y));
        },
        "weight"_a, "eps"_a, "width"_a, "layout"_a.none(), "a"_a, "b"_a, "sum"_a, "y"_a);
    program.def(
        "layer_norm",
        [](Program& p, const Floats& weight, const std::optional<Floats>& bias, float eps,
           int64_t head_dim, SharedInputs layout, SlotFields x, SlotFields y) {
            append<NormOp>(p, layer_norm(weight, bias, eps, head_dim, layout), slot(x), slot(y));
        },
        "weight"_a, "bias"_a.none(), "eps"_a, "head_dim"_a, "layout"_a.none(), "x"_a, "y"_a);
    program.def(
        "add_layer_norm",
        [](Program& p, const Floats& weight, const std::optional<Floats>& bias, float eps,
           int64_t head_dim, SharedInputs layout, SlotFields a, SlotFields b, SlotFields sum,
           SlotFields y) {
            append<AddNormOp>(p, layer_norm(weight, bias, eps, head_dim, layout), slot(a), slot(b),
                              slot(sum), slot(y));
        },
        "weight"_a, "bias"_a.none(), "eps"_a, "head_dim"_a, "layout"_a.none(), "a"_a, "b"_a,
        "sum"_a, "y"_a);
}

}  // namespace galley
