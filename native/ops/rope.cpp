// Rotations by position (arXiv:2104.09864).
#include "bind.hpp"

namespace galley {
namespace {

class RopeOp : public Op {
  public:
    RopeOp(std::vector<float> inv_freq, float scale, int64_t width, Slot x, Slot y)
        : inv_freq_(std::move(inv_freq)), scale_(scale), width_(width), x_(x), y_(y) {}

    void check(Execution& e) override {
        const auto head_dim = 2 * static_cast<int64_t>(inv_freq_.size());
        require(head_dim > 0 && width_ % head_dim == 0, "rotated heads do not divide the width");
        e.check_floats_read(x_, width_);
        e.check_floats_written(y_, width_);
        angles_ = e.angles_for(inv_freq_, scale_);
    }

    void run(Execution& e) const override {
        e.each_row(width_,
                   [&](int64_t r, int) { e.turn(angles_, r, e.row(x_, r), width_, e.row(y_, r)); });
    }

  private:
    std::vector<float> inv_freq_;
    float scale_;
    int64_t width_;
    int angles_ = 0;  // which table of the step
    Slot x_, y_;
};

}  // namespace

void bind_rope(ProgramClass& program) {
    program.def("rope", [](Program& p, std::vector<float> inv_freq, float scale, int64_t width,
                           SlotFields x, SlotFields y) {
        append<RopeOp>(p, std::move(inv_freq), scale, width, slot(x), slot(y));
    });
}

}  // namespace galley
