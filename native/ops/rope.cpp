// Rotations by position (arXiv:2104.09864).
#include "bind.hpp"

namespace galley {
namespace {

class RopeOp : public Op {
  public:
    RopeOp(std::vector<float> inv_freq, float scale, int64_t head_dim, int64_t width, Slot x,
           Slot y)
        : inv_freq_(std::move(inv_freq)),
          scale_(scale),
          head_dim_(head_dim),
          width_(width),
          x_(x),
          y_(y) {}

    void check(Execution& e) override {
        require(head_dim_ > 0 && width_ % head_dim_ == 0, "rotated heads do not divide the width");
        require(!inv_freq_.empty() && 2 * static_cast<int64_t>(inv_freq_.size()) <= head_dim_,
                "there are more angles than a head has pairs, or none");
        e.check_floats_read(x_, width_);
        e.check_floats_written(y_, width_);
        angles_ = e.angles_for(inv_freq_, scale_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            e.turn(angles_, r, e.row(x_, r), width_, head_dim_, e.row(y_, r));
        });
    }

  private:
    std::vector<float> inv_freq_;
    float scale_;
    int64_t head_dim_, width_;
    int angles_ = 0;  // which table of the step
    Slot x_, y_;
};

}  // namespace

void bind_rope(ProgramClass& program) {
    program.def("rope", [](Program& p, std::vector<float> inv_freq, float scale, int64_t head_dim,
                           int64_t width, SlotFields x, SlotFields y) {
        append<RopeOp>(p, std::move(inv_freq), scale, head_dim, width, slot(x), slot(y));
    });
}

}  // namespace galley
