// Ops that make each element of their output of the same element of their inputs: all kernels that
// kernels/elementwise.cpp lists.
#include "ops/ops.hpp"

namespace galley {
namespace {

class ElementwiseOp : public Op {
  public:
    // `b`: null for an op of one input.
    ElementwiseOp(const char* name, float number, int64_t width, SharedLayout layout, Slot a,
                  std::optional<Slot> b, Slot y)
        : name_(name),
          number_(number),
          width_(width),
          layout_(std::move(layout)),
          a_(a),
          b_(b),
          y_(y) {}

    void check(Execution& e) override {
        kernel_ = e.kernels.elementwise_named(name_);
        e.check_floats_read(a_, width_);
        if (b_) e.check_floats_read(*b_, width_);
        e.check_made(layout_, y_, width_);
    }

    void run(Execution& e) const override {
        e.each_row_made(layout_, kernel_->work * width_, y_, [&](int64_t r, float* y) {
            kernel_->run(e.row(a_, r), b_ ? e.row(*b_, r) : nullptr, number_, width_, y);
        });
    }

  private:
    const char* name_;
    const Elementwise* kernel_ = nullptr;
    float number_;  // the kernel's number, if it takes one
    int64_t width_;
    SharedLayout layout_;
    Slot a_;
    std::optional<Slot> b_;
    Slot y_;
};

}  // namespace

OpPtr make_elementwise(const char* name, float number, int64_t width, SharedLayout layout, Slot a,
                       std::optional<Slot> b, Slot y) {
    return std::make_unique<ElementwiseOp>(name, number, width, std::move(layout), a, b, y);
}

}  // namespace galley
