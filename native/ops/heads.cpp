// Linear layers of single heads, and heads of two buffers side by side.
#include <algorithm>
#include <cstring>

#include "ops/ops.hpp"

namespace galley {
namespace {

// Each head's columns of x times the head's own matrix. Rounded inputs of a head lie one row after
// another in the working memory, head after head.
class HeadLinearOp : public Op {
  public:
    struct Head {
        Weights weight;
        SharedLayout layout;  // of its columns of x; null: floats
    };

    HeadLinearOp(std::vector<Head> heads, Slot work, Slot x, Slot y)
        : heads_(std::move(heads)), work_(work), x_(x), y_(y) {}

    void check(Execution& e) override {
        require(!heads_.empty(), "there are no heads");
        depth_ = heads_[0].weight->matrix().depth;
        outputs_ = heads_[0].weight->matrix().outputs;
        for (const Head& head : heads_) {
            const Matrix& m = head.weight->matrix();
            require(m.depth == depth_ && m.outputs == outputs_, "heads differ in size");
            require(!head.layout || head.layout->suits(m), "x is quantized for other weights");
            if (head.layout)
                row_bytes_ = std::max(row_bytes_, round_up(head.layout->row_bytes(), 64));
        }
        e.check_floats_read(x_, count() * depth_);
        e.check_written(work_, count() * row_bytes_);
        e.check_floats_written(y_, count() * outputs_);
        e.runtime.need_scratch(kLinearScratch);
    }

    void run(Execution& e) const override {
        if (row_bytes_) round_inputs(e);
        const int64_t blocks = round_up(outputs_, kLanes) / kLanes;
        const int64_t pieces = (blocks + kBlocksPerItem - 1) / kBlocksPerItem;
        e.pool.run(count() * pieces, 1, [&](int64_t begin, int64_t end, int thread) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t head = i / pieces, first = i % pieces * kBlocksPerItem;
                const int64_t last = std::min(first + kBlocksPerItem, blocks);
                e.kernels.linear(linear(e, head), first, last, e.runtime.scratch(thread));
            }
        });
    }

  private:
    int64_t count() const { return static_cast<int64_t>(heads_.size()); }

    uint8_t* rounded(const Execution& e, int64_t head, int64_t row) const {
        return e.at(work_) + (head * e.rows + row) * row_bytes_;
    }

    void round_inputs(Execution& e) const {
        e.each_row(count() * depth_, [&](int64_t r, int) {
            for (int64_t h = 0; h < count(); ++h) {
                const SharedLayout& layout = heads_[h].layout;
                if (!layout) continue;
                layout->write(e.kernels, e.row(x_, r) + h * depth_, rounded(e, h, r));
            }
        });
    }

    Linear linear(const Execution& e, int64_t h) const {
        const SharedLayout& layout = heads_[h].layout;
        const auto* floats = reinterpret_cast<const uint8_t*>(e.row(x_, 0) + h * depth_);
        const Activations x =
            layout ? Activations{rounded(e, h, 0), row_bytes_, layout->sums(), layout->inputs()}
                   : Activations{floats, x_.stride, 0, Inputs::kFloats};
        return {&heads_[h].weight->matrix(),
                x,
                nullptr,
                e.row(y_, 0) + h * outputs_,
                y_.stride / static_cast<int64_t>(sizeof(float)),
                e.rows};
    }

    std::vector<Head> heads_;
    int64_t depth_ = 0, outputs_ = 0;
    int64_t row_bytes_ = 0;  // of a head's rounded inputs; 0: all are floats
    Slot work_, x_, y_;
};

// Heads of `a` and of `b`, of so many columns each, side by side.
class JoinHeadsOp : public Op {
  public:
    JoinHeadsOp(int64_t heads, int64_t size, int64_t width, Slot a, Slot b, Slot y)
        : heads_(heads),
          size_(size),
          rest_(heads > 0 ? width / heads - size : 0),
          a_(a),
          b_(b),
          y_(y) {}

    void check(Execution& e) override {
        require(heads_ > 0 && size_ > 0 && rest_ > 0, "a head has no columns");
        e.check_floats_read(a_, heads_ * size_);
        e.check_floats_read(b_, heads_ * rest_);
        e.check_floats_written(y_, heads_ * (size_ + rest_));
    }

    void run(Execution& e) const override {
        e.each_row(heads_ * (size_ + rest_), [&](int64_t r, int) {
            const float *a = e.row(a_, r), *b = e.row(b_, r);
            float* y = e.row(y_, r);
            for (int64_t h = 0; h < heads_; ++h, a += size_, b += rest_) {
                std::memcpy(y, a, size_ * sizeof(float));
                std::memcpy(y + size_, b, rest_ * sizeof(float));
                y += size_ + rest_;
            }
        });
    }

  private:
    int64_t heads_, size_, rest_;
    Slot a_, b_, y_;
};

}  // namespace

OpPtr make_head_linear(WeightFields weight, Slot work, Slot x, Slot y) {
    std::vector<HeadLinearOp::Head> heads;
    for (const auto& [matrix, layout] : weight) heads.push_back({matrix, layout.value_or(nullptr)});
    return std::make_unique<HeadLinearOp>(std::move(heads), work, x, y);
}

OpPtr make_join_heads(int64_t heads, int64_t size, int64_t width, Slot a, Slot b, Slot y) {
    return std::make_unique<JoinHeadsOp>(heads, size, width, a, b, y);
}

}  // namespace galley
