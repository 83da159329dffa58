// Rows that are copied: an encoder's frames, and those whose logits are wanted.
#include <cstring>

#include "bind.hpp"

namespace galley {
namespace {

class FeaturesOp : public Op {
  public:
    FeaturesOp(int64_t width, Slot y) : width_(width), y_(y) {}

    void check(Execution& e) override {
        require(width_ > 0, "frames have no columns");
        e.check_floats_written(y_, width_);
        e.limits.mels = width_;
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            std::memcpy(e.row(y_, r), e.frames + r * width_, width_ * sizeof(float));
        });
    }

  private:
    int64_t width_;
    Slot y_;
};

class SelectRowsOp : public Op {
  public:
    SelectRowsOp(int64_t width, Slot x, Slot y) : width_(width), x_(x), y_(y) {}

    void check(Execution& e) override {
        require(width_ > 0, "a buffer has no columns");
        e.limits.selects = true;
        e.check_floats_read(x_, width_);
        e.check_floats_written(y_, width_);
    }

    void run(Execution& e) const override {
        e.rows = e.step.wanted_rows;
        e.ended = e.rows == 0;
        for (int64_t r = 0; r < e.rows; ++r)
            std::memcpy(e.row(y_, r), e.row(x_, e.step.wanted[r]), width_ * sizeof(float));
    }

  private:
    int64_t width_;
    Slot x_, y_;
};

}  // namespace

void bind_rows(ProgramClass& program) {
    program.def("features", [](Program& p, int64_t mels, SlotFields y) {
        append<FeaturesOp>(p, mels, slot(y));
    });
    program.def("select_rows", [](Program& p, int64_t width, SlotFields x, SlotFields y) {
        append<SelectRowsOp>(p, width, slot(x), slot(y));
    });
}

}  // namespace galley
