// What a program consists of: ops on buffers of one arena.
#pragma once

#include <memory>

#include "packing/packed.hpp"

namespace galley {

// Where a buffer lives. The arena of a step with T rows is T times the planned one, so a buffer
// begins at offset * T, its rows are `stride` bytes apart and it has those from `column` bytes into
// each row on. `kLogits` is the caller's array.
struct Slot {
    static constexpr int64_t kLogits = -1;
    int64_t offset;
    int64_t stride;
    int64_t column;
};

using Weights = std::shared_ptr<const Packed>;
using SharedLayout = std::shared_ptr<const InputLayout>;

class Execution;

// One file in ops/ for an op, or for a family: its fields, check and run.
class Op {
  public:
    virtual ~Op() = default;
    // Called once, before the first step. Wishes for working memory. Throws std::invalid_argument
    // if a buffer is outside the arena or the op's arguments do not match.
    virtual void check(Execution& e) = 0;
    // For all rows of the step in progress.
    virtual void run(Execution& e) const = 0;
};

}  // namespace galley
