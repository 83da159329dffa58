// Weight matrices in the layout of kernels.hpp, how they get there, and what their inputs become.
#pragma once

#include <memory>
#include <vector>

#include "kernels/kernels.hpp"
#include "system/memory.hpp"

namespace galley {

// Goes up with every change of the packed layout or of how weights are rounded; matrices that were
// kept on disk before are then made anew.
constexpr int kLayoutVersion = 1;

// Rows of a checkpoint's tensor, row-major, as they are on disk.
struct Source {
    const uint8_t* data;
    FloatType type;
    int64_t rows;
};

class Packed {
  public:
    // Longer groups could overflow the 32-bit sums: 65536 * 255 * 127 < 2^31.
    static constexpr int64_t kLongestGroup = 65536;
    // Two products of such a weight + 64 and of an int8 input fit 16 bits.
    static constexpr int kNarrow = 63;

    struct Shape {
        Kind kind;
        int64_t outputs;
        int64_t depth;
        int64_t group;  // counts only for integer kinds; 0: the whole depth
        FloatType scale_type;
        bool zeros;
        bool minima;
        bool narrow = false;  // of int8: no integer is beyond kNarrow
    };

    // Row-major, as a checkpoint has them: `q` [outputs, depth], int8 as bytes, int4 as 0 to 15;
    // the others [outputs, groups] in this matrix's scale type (but zero points, which are bytes),
    // supers float16 [outputs, supers]. Null: there are none.
    struct Integers {
        const uint8_t *q, *scales, *zeros, *minima, *super_scales, *super_minima;
    };

    // Zeroed. Throws std::invalid_argument for sizes that the kernels do not take.
    explicit Packed(const Shape& shape);

    // Views a matrix that was packed before: `size` bytes on a 64-byte boundary that `owner` keeps
    // alive. Throws std::invalid_argument if they are not `bytes()` many.
    Packed(const Shape& shape, const uint8_t* data, int64_t size,
           std::shared_ptr<const void> owner);

    // A matrix that stays in a file, `offset` bytes into it, and is nowhere in memory.
    Packed(const Shape& shape, int64_t file_offset);

    // What a matrix of this shape would be, without memory. Throws as the constructors.
    static Matrix matrix_of(const Shape& shape);
    static int64_t bytes_of(const Shape& shape);

    const Matrix& matrix() const { return matrix_; }
    const uint8_t* data() const { return matrix_.weights; }
    int64_t bytes() const { return bytes_; }
    // -1: it is in memory.
    int64_t file_offset() const { return file_offset_; }
    // The matrix, if its bytes lie at `data`.
    Matrix placed(const uint8_t* data) const;

    // The rows of `parts`, one after another, are the outputs, rounded to nearest. Returns the
    // index of a part that holds a value which this kind cannot stand for, or -1: integers for what
    // is not finite, float16 for what is finite and becomes infinite.
    int64_t fill(const std::vector<Source>& parts, int threads);
    void fill_integer(const Integers& integers, int threads);

  private:
    class Rows;

    Packed() = default;
    bool integer() const { return is_integer(matrix_.kind); }
    int64_t blocks() const { return round_up(matrix_.outputs, kLanes) / kLanes; }
    static int64_t lane_at(int64_t output, int64_t index, int64_t count);
    uint8_t* own(const uint8_t* part);
    template <class Body>
    void each_part(const Body& body);
    void lay_out(const Shape& shape);
    void place(const uint8_t* data);
    void require_own_memory() const;
    int64_t interleave(const Rows& rows, int64_t block);
    int64_t round(const Rows& rows, int64_t block);
    bool round_row(int64_t output, const float* values, uint8_t* stored);
    void store(int64_t output, const uint8_t* stored);

    Matrix matrix_{};
    struct {
        bool scales = false, zeros = false, minima = false, super_scales = false,
             super_minima = false;
    } parts_;  // present in addition to the weights
    int64_t bytes_ = 0;
    int64_t file_offset_ = -1;
    Memory memory_;
    std::shared_ptr<const void> owner_;
};

// How rows of activations are made ready for matrices of one kind, depth and group.
class InputLayout {
  public:
    // `matrix` is a shape: its weights are not read. `step`: what all int8 inputs are multiples of;
    // 0: each group of a row has a scale of its own. Throws std::invalid_argument for what such a
    // matrix is not multiplied with.
    InputLayout(const Matrix& matrix, Inputs inputs, float step = 0.0f);

    const Matrix& matrix() const { return matrix_; }
    Inputs inputs() const { return inputs_; }
    int64_t row_bytes() const { return row_bytes_; }
    int64_t sums() const { return sums_; }
    bool suits(const Matrix& other) const;

    // Rounds the inputs x [depth] to `row`.
    void write(const Kernels& kernels, const float* x, uint8_t* row) const {
        if (step_ > 0.0f)
            write_steps(x, row);
        else
            kernels.quantize_input(matrix_, inputs_, x, row, sums_);
    }

  private:
    void write_steps(const float* x, uint8_t* row) const;

    Matrix matrix_;
    Inputs inputs_;
    float step_;
    int64_t sums_ = 0;  // where those of the groups lie
    int64_t row_bytes_;
};

}  // namespace galley
