// Weight matrices in the layout of kernels.hpp, and how they get there.
#pragma once

#include <string>

#include "kernels.hpp"
#include "memory.hpp"

namespace galley {

class Packed {
  public:
    // Zeroed; `group` counts only for integer kinds (0: the whole depth).
    // Throws std::invalid_argument for sizes that the kernels do not take.
    Packed(Kind kind, int64_t outputs, int64_t depth, int64_t group, ScaleType scale_type,
           bool zeros);

    const Matrix& matrix() const { return matrix_; }
    int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

    // Where the group sums lie in a row of activations, and how many bytes the row has.
    int64_t sums_offset() const;
    int64_t activation_bytes() const;

    // `source`: [outputs, depth] row-major, of `type`.
    void fill_dense(const uint8_t* source, ScaleType type);
    // `q`: [outputs, depth]; int8 as bytes, int4 as 0..15. `scales`: [outputs, groups] in this
    // matrix's scale type. `zeros`: [outputs, groups] or null.
    void fill_integer(const uint8_t* q, const uint8_t* scales, const uint8_t* zeros);

  private:
    bool integer() const { return matrix_.kind == Kind::kInt8 || matrix_.kind == Kind::kInt4; }

    Matrix matrix_{};
    Memory memory_;
};

}  // namespace galley
