// Rows that are copied: an encoder's frames, those whose logits are wanted, and parts of heads.
#include <cstring>

#include "ops/ops.hpp"

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

// Rows of an encoder that its caller wants, too.
class EncoderRowsOp : public Op {
  public:
    EncoderRowsOp(int64_t width, Slot x) : width_(width), x_(x) {}

    void check(Execution& e) override {
        require(width_ > 0, "a buffer has no columns");
        e.check_floats_read(x_, width_);
        e.limits.given_width = width_;
    }

    void run(Execution& e) const override {
        if (e.given == nullptr) return;
        for (int64_t r = 0; r < e.rows; ++r)
            std::memcpy(e.given + r * width_, e.row(x_, r), width_ * sizeof(float));
    }

  private:
    int64_t width_;
    Slot x_;
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
        e.take_wanted();
        for (int64_t r = 0; r < e.rows; ++r)
            std::memcpy(e.row(y_, r), e.row(x_, e.step.wanted[r]), width_ * sizeof(float));
    }

  private:
    int64_t width_;
    Slot x_, y_;
};

class HeadColumnsOp : public Op {
  public:
    // `size` columns from `start` on of each head, `stride` columns wide; `width` in all.
    HeadColumnsOp(int64_t start, int64_t size, int64_t stride, int64_t width, Slot x, Slot y)
        : start_(start), size_(size), stride_(stride), width_(width), x_(x), y_(y) {}

    void check(Execution& e) override {
        require(size_ > 0 && width_ > 0 && width_ % size_ == 0,
                "parts of heads do not divide the width");
        require(start_ >= 0 && start_ < stride_ && size_ <= stride_ - start_ &&
                    stride_ <= e.arena_bytes,
                "a head does not have the columns that are wanted of it");
        e.check_floats_written(y_, width_);
        e.check_floats_read(x_, width_ / size_ * stride_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            const float* x = e.row(x_, r) + start_;
            float* y = e.row(y_, r);
            for (int64_t at = 0; at < width_; at += size_, x += stride_)
                std::memcpy(y + at, x, size_ * sizeof(float));
        });
    }

  private:
    int64_t start_, size_, stride_, width_;
    Slot x_, y_;
};

}  // namespace

OpPtr make_features(int64_t mels, Slot y) { return std::make_unique<FeaturesOp>(mels, y); }

OpPtr make_encoder_rows(int64_t width, Slot x) { return std::make_unique<EncoderRowsOp>(width, x); }

OpPtr make_select_rows(int64_t width, Slot x, Slot y) {
    return std::make_unique<SelectRowsOp>(width, x, y);
}

OpPtr make_head_columns(int64_t start, int64_t size, int64_t stride, int64_t width, Slot x,
                        Slot y) {
    return std::make_unique<HeadColumnsOp>(start, size, stride, width, x, y);
}

}  // namespace galley
