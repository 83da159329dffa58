// Rotations by position (arXiv:2104.09864).
#include "bind.hpp"

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

}  // namespace

void bind_rope(ProgramClass& program) {
    program.def("rope", [](Program& p, std::vector<float> inv_freq, float scale, bool adjacent,
                           int64_t head_dim, int64_t width, SlotFields x, SlotFields y) {
        append<RopeOp>(p, Rotation{std::move(inv_freq), scale, adjacent}, head_dim, width, slot(x),
                       slot(y));
    });
}

}  // namespace galley
