// The rows of all ranks side by side.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/ops.hpp"

namespace galley {

Gather::Gather(SharedCommunicator communicator, std::vector<int64_t> widths, bool leader_only)
    : communicator_(std::move(communicator)),
      widths_(std::move(widths)),
      leader_only_(leader_only) {
    require(communicator_ != nullptr, "a program of one of several ranks has a communicator");
    require(static_cast<int>(widths_.size()) == communicator_->ranks(),
            "there is not one width for each rank");
    require(std::all_of(widths_.begin(), widths_.end(), [](int64_t w) { return w > 0; }),
            "a rank has no columns");
    require(4 * widest() <= communicator_->slot_bytes(), "a row is wider than a slot");
}

int64_t Gather::widest() const { return *std::max_element(widths_.begin(), widths_.end()); }

int64_t Gather::first(int rank) const {
    return std::accumulate(widths_.begin(), widths_.begin() + rank, int64_t{0});
}

int64_t Gather::width() const { return first(static_cast<int>(widths_.size())); }

void Gather::run(Pool& pool, int64_t rows, const uint8_t* x, int64_t x_stride, uint8_t* y,
                 int64_t y_stride) const {
    // Less than this, in bytes, is not worth waking another thread for.
    constexpr int64_t kShareFrom = 1 << 18;
    const int64_t mine = 4 * own(), grain = std::max<int64_t>(1, kShareFrom / (4 * widest()));
    const bool reads = !leader_only_ || communicator_->rank() == 0;
    const auto copy = [&](int64_t count, int64_t bytes, const uint8_t* from, int64_t from_stride,
                          uint8_t* to, int64_t to_stride) {
        pool.run(count, grain, [&](int64_t begin, int64_t end, int) {
            for (int64_t r = begin; r < end; ++r)
                std::memcpy(to + r * to_stride, from + r * from_stride, bytes);
        });
    };
    communicator_->exchange(
        rows, 4 * widest(),
        [&](uint8_t* slot, int64_t begin, int64_t end) {
            if (leader_only_ && communicator_->rank() == 0) return int64_t{0};
            copy(end - begin, mine, x + begin * x_stride, x_stride, slot, mine);
            return (end - begin) * mine;
        },
        [&](int other, const uint8_t* slot, int64_t begin, int64_t end) {
            if (!reads) return;
            const int64_t bytes = 4 * widths_[other];
            copy(end - begin, bytes, slot, bytes, y + begin * y_stride + 4 * first(other),
                 y_stride);
        });
    uint8_t* place = y + 4 * first(communicator_->rank());
    if (reads && place != x) copy(rows, mine, x, x_stride, place, y_stride);
}

namespace {

class AllGatherOp : public Op {
  public:
    AllGatherOp(Gather gather, Slot x, Slot y) : gather_(std::move(gather)), x_(x), y_(y) {}

    void check(Execution& e) override {
        e.check_floats_read(x_, gather_.own());
        e.check_floats_written(y_, gather_.width());
    }

    void run(Execution& e) const override {
        gather_.run(e.pool, e.rows, e.at(x_), x_.stride, e.at(y_), y_.stride);
    }

  private:
    Gather gather_;
    Slot x_, y_;
};

}  // namespace

OpPtr make_all_gather(SharedCommunicator communicator, std::vector<int64_t> widths,
                      bool leader_only, Slot x, Slot y) {
    return std::make_unique<AllGatherOp>(
        Gather(std::move(communicator), std::move(widths), leader_only), x, y);
}

}  // namespace galley
