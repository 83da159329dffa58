// Rows of a table, by token id, by type of token or by position.
#include <algorithm>
#include <cstring>

#include "ops/ops.hpp"

namespace galley {
namespace {

class EmbedOp : public Op {
  public:
    EmbedOp(Weights weight, Slot y) : weight_(std::move(weight)), y_(y) {}

    void check(Execution& e) override {
        e.check_floats_written(y_, weight_->matrix().depth);
        e.limits.tokens = std::min(e.limits.tokens, weight_->matrix().outputs);
    }

    void run(Execution& e) const override {
        const Matrix& m = weight_->matrix();
        e.each_row(m.depth,
                   [&](int64_t r, int) { e.kernels.embed(m, e.step.tokens[r], e.row(y_, r)); });
    }

  private:
    Weights weight_;
    Slot y_;
};

// Of several ranks, each of which has some rows of the table, and the others' from them.
class EmbedPartOp : public Op {
  public:
    // Rank r has `counts[r]` rows, after those of the ranks before it.
    EmbedPartOp(Weights weight, const std::vector<int64_t>& counts, SharedCommunicator communicator,
                Slot y)
        : weight_(std::move(weight)), communicator_(std::move(communicator)), y_(y) {
        require(communicator_ && static_cast<int>(counts.size()) == communicator_->ranks(),
                "there is not one number of rows for each rank");
        for (const int64_t count : counts)
            ends_.push_back(count + (ends_.empty() ? 0 : ends_.back()));
        require(counts[communicator_->rank()] == weight_->matrix().outputs,
                "a rank has other rows than it says");
        require(bytes() <= communicator_->slot_bytes(), "a row is wider than a slot");
    }

    void check(Execution& e) override {
        e.check_floats_written(y_, weight_->matrix().depth);
        e.limits.tokens = std::min(e.limits.tokens, ends_.back());
    }

    void run(Execution& e) const override {
        const Matrix& m = weight_->matrix();
        const int rank = communicator_->rank();
        const int64_t first = ends_[rank] - m.outputs;
        communicator_->exchange(
            e.rows, bytes(),
            [&](uint8_t* slot, int64_t begin, int64_t end) {
                for (int64_t r = begin; r < end; ++r) {
                    if (owner(e.step.tokens[r]) != rank) continue;
                    e.kernels.embed(m, e.step.tokens[r] - first, e.row(y_, r));
                    std::memcpy(slot + (r - begin) * bytes(), e.row(y_, r), bytes());
                }
                return (end - begin) * bytes();
            },
            [&](int other, const uint8_t* slot, int64_t begin, int64_t end) {
                for (int64_t r = begin; r < end; ++r)
                    if (owner(e.step.tokens[r]) == other)
                        std::memcpy(e.row(y_, r), slot + (r - begin) * bytes(), bytes());
            });
    }

  private:
    int64_t bytes() const { return 4 * weight_->matrix().depth; }
    int owner(int64_t token) const {
        return static_cast<int>(std::upper_bound(ends_.begin(), ends_.end(), token) -
                                ends_.begin());
    }

    Weights weight_;
    std::vector<int64_t> ends_;
    SharedCommunicator communicator_;
    Slot y_;
};

class EmbedPositionsOp : public Op {
  public:
    // `weight`: [positions][width], of which row `first` is that of position 0.
    EmbedPositionsOp(std::vector<float> weight, int64_t first, int64_t width, Slot y)
        : weight_(std::move(weight)), first_(first), width_(width), y_(y) {}

    void check(Execution& e) override {
        const auto size = static_cast<int64_t>(weight_.size());
        require(width_ > 0 && size % width_ == 0, "a table of positions has no whole rows");
        e.check_floats_written(y_, width_);
        require(first_ >= 0 && first_ < size / width_, "a table has no row of position 0");
        e.limits.positions = std::min(e.limits.positions, size / width_ - first_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            std::memcpy(e.row(y_, r), weight_.data() + (first_ + e.step.positions[r]) * width_,
                        width_ * sizeof(float));
        });
    }

  private:
    std::vector<float> weight_;
    int64_t first_, width_;
    Slot y_;
};

class EmbedTypesOp : public Op {
  public:
    // `weight`: [types][width].
    EmbedTypesOp(std::vector<float> weight, int64_t width, Slot y)
        : weight_(std::move(weight)), width_(width), y_(y) {}

    void check(Execution& e) override {
        const auto size = static_cast<int64_t>(weight_.size());
        require(width_ > 0 && size > 0 && size % width_ == 0, "a table of types has no whole rows");
        e.check_floats_written(y_, width_);
        e.limits.types = std::min(e.limits.types, size / width_);
    }

    void run(Execution& e) const override {
        e.each_row(width_, [&](int64_t r, int) {
            const int64_t type = e.step.types ? e.step.types[r] : 0;
            std::memcpy(e.row(y_, r), weight_.data() + type * width_, width_ * sizeof(float));
        });
    }

  private:
    std::vector<float> weight_;
    int64_t width_;
    Slot y_;
};

}  // namespace

OpPtr make_embed_part(Weights weight, std::vector<int64_t> ranks, SharedCommunicator communicator,
                      Slot y) {
    return std::make_unique<EmbedPartOp>(std::move(weight), ranks, std::move(communicator), y);
}

OpPtr make_embed(Weights weight, Slot y) { return std::make_unique<EmbedOp>(std::move(weight), y); }

OpPtr make_embed_positions(Values weight, int64_t first, int64_t width, Slot y) {
    return std::make_unique<EmbedPositionsOp>(std::move(weight), first, width, y);
}

OpPtr make_embed_types(Values weight, int64_t width, Slot y) {
    return std::make_unique<EmbedTypesOp>(std::move(weight), width, y);
}

}  // namespace galley
