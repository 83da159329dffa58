#include "packing/packed.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "packing/rounding.hpp"
#include "system/pool.hpp"

namespace galley {

namespace {

// Columns of a block that are interleaved at a time, so that they stay in the nearest cache.
constexpr int64_t kColumns = 256;

int64_t depth_multiple(Kind kind) {
    switch (kind) {
        case Kind::kF32:
        case Kind::kF16:
            return 1;
        case Kind::kBF16:
            return 2;
        case Kind::kInt8:
            return 4;
        case Kind::kInt4:
            return 8;
    }
    throw std::invalid_argument("unknown weight kind");
}

int64_t weight_bytes(Kind kind, int64_t elements) {
    switch (kind) {
        case Kind::kF32:
            return 4 * elements;
        case Kind::kBF16:
        case Kind::kF16:
            return 2 * elements;
        case Kind::kInt8:
            return elements;
        case Kind::kInt4:
            return elements / 2;
    }
    throw std::invalid_argument("unknown weight kind");
}

// Columns of int8 inputs that share a scale (galley/quant/int8_inputs.py): so few that an outlier
// costs few others their precision, fewer beside weights that lose less themselves; an equal part
// of a group, unless there is but one.
int64_t input_group(Kind kind, int64_t group, int64_t groups) {
    int64_t columns = std::min<int64_t>(group, kind == Kind::kInt8 ? 64 : 128);
    while (groups > 1 && group % columns) columns -= 16;
    return columns;
}

// The 16 outputs of each block, on all threads.
template <class Body>
void for_each_block(int64_t blocks, int threads, const Body& body) {
    Pool pool(threads, {});
    pool.run(blocks, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t block = begin; block < end; ++block) body(block);
    });
}

}  // namespace

// Tensors as the rows of one matrix.
class Packed::Rows {
  public:
    Rows(const std::vector<Source>& parts, int64_t depth) : parts_(parts), depth_(depth) {
        for (const Source& part : parts)
            ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part.rows);
    }

    int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

    int64_t part_of(int64_t row) const {
        return std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin();
    }

    // Columns [begin, begin + count) of a row, as floats.
    void read(int64_t row, int64_t begin, int64_t count, float* values) const {
        const int64_t part = part_of(row);
        const Source& source = parts_[part];
        const int64_t first = (row - (ends_[part] - source.rows)) * depth_ + begin;
        widen(source.data + first * galley::bytes_of(source.type), source.type, count, values);
    }

  private:
    const std::vector<Source>& parts_;
    int64_t depth_;
    std::vector<int64_t> ends_;
};

Packed::Packed(const Shape& shape) {
    lay_out(shape);
    memory_ = Memory(bytes_);
    place(memory_.data());
}

Packed::Packed(const Shape& shape, const uint8_t* data, int64_t size,
               std::shared_ptr<const void> owner)
    : owner_(std::move(owner)) {
    lay_out(shape);
    if (size != bytes_ || reinterpret_cast<uintptr_t>(data) % 64)
        throw std::invalid_argument("these are not the bytes of such a matrix");
    place(data);
}

Packed::Packed(const Shape& shape, int64_t file_offset) : file_offset_(file_offset) {
    if (file_offset < 0) throw std::invalid_argument("a file has no such place");
    lay_out(shape);
}

Matrix Packed::placed(const uint8_t* data) const {
    Packed there;
    there.matrix_ = matrix_;
    there.parts_ = parts_;
    there.place(data);
    return there.matrix_;
}

Matrix Packed::matrix_of(const Shape& shape) {
    Packed packed;
    packed.lay_out(shape);
    return packed.matrix_;
}

int64_t Packed::bytes_of(const Shape& shape) {
    Packed packed;
    packed.lay_out(shape);
    return packed.bytes_;
}

void Packed::lay_out(const Shape& shape) {
    const auto& [kind, outputs, depth, group, scale_type, zeros, minima, narrow] = shape;
    if (outputs < 1 || depth < 1) throw std::invalid_argument("a weight matrix cannot be empty");
    if (zeros && kind != Kind::kInt4)
        throw std::invalid_argument("only int4 weights have zero points");
    if (narrow && kind != Kind::kInt8)
        throw std::invalid_argument("only int8 weights may be narrow");
    if (zeros && minima) throw std::invalid_argument("weights have zero points or minima");
    const int64_t padded = round_up(depth, depth_multiple(kind));
    matrix_ = {};
    matrix_.kind = kind;
    matrix_.scale_type = scale_type;
    matrix_.narrow = narrow;
    matrix_.outputs = outputs;
    matrix_.depth = depth;
    matrix_.padded_depth = matrix_.group = padded;
    bytes_ = round_up(galley::weight_bytes(kind, blocks() * kLanes * padded), 64);
    if (!integer()) return;
    matrix_.group = group == 0 ? round_up(depth, 16) : group;
    if (matrix_.group < 16 || matrix_.group % 16 || matrix_.group > kLongestGroup)
        throw std::invalid_argument("a group must be a multiple of 16, at most 65536 long");
    matrix_.groups = round_up(depth, matrix_.group) / matrix_.group;
    matrix_.input_group = input_group(kind, matrix_.group, matrix_.groups);
    // As many as there are in all but the last group, and in that.
    const int64_t last = padded - (matrix_.groups - 1) * matrix_.group;
    matrix_.input_groups = (matrix_.groups - 1) * (matrix_.group / matrix_.input_group) +
                           round_up(last, matrix_.input_group) / matrix_.input_group;
    const bool nested = scale_type == FloatType::kNested;
    if (nested && kSuper % matrix_.group && (matrix_.groups > 1 || depth > kSuper))
        throw std::invalid_argument("groups with nested scales must divide 256");
    matrix_.supers = nested ? round_up(depth, kSuper) / kSuper : 0;
    parts_ = {true, zeros, minima, nested, nested && minima};
    each_part([&](const uint8_t*&, int64_t values, int64_t size) {
        bytes_ += round_up(values * size, 64);
    });
}

// The arrays behind the weights, in their order: calls body(pointer, values, bytes of a value).
template <class Body>
void Packed::each_part(const Body& body) {
    Matrix& m = matrix_;
    const int64_t size = galley::bytes_of(m.scale_type), lanes = blocks() * kLanes;
    if (parts_.scales) body(m.scales, lanes * m.groups, size);
    if (parts_.zeros) body(m.zeros, lanes * m.groups, 1);
    if (parts_.minima) body(m.minima, lanes * m.groups, size);
    if (parts_.super_scales) body(m.super_scales, lanes * m.supers, 2);
    if (parts_.super_minima) body(m.super_minima, lanes * m.supers, 2);
}

void Packed::place(const uint8_t* data) {
    const Matrix& m = matrix_;
    matrix_.weights = data;
    data += round_up(galley::weight_bytes(m.kind, blocks() * kLanes * m.padded_depth), 64);
    each_part([&](const uint8_t*& part, int64_t values, int64_t size) {
        part = data;
        data += round_up(values * size, 64);
    });
}

int64_t Packed::fill(const std::vector<Source>& parts, int threads) {
    const Rows rows(parts, matrix_.depth);
    if (rows.count() != matrix_.outputs)
        throw std::invalid_argument("the parts have not as many rows as the matrix has outputs");
    if (matrix_.minima) throw std::invalid_argument("rounding makes no minima");
    if (integer() && matrix_.scale_type != FloatType::kBF16)
        throw std::invalid_argument("rounding makes scales of another type");
    require_own_memory();
    std::atomic<int64_t> unusable{-1};
    for_each_block(blocks(), threads, [&](int64_t block) {
        const int64_t bad = integer() ? round(rows, block) : interleave(rows, block);
        if (bad >= 0) unusable.store(rows.part_of(bad));
    });
    return unusable.load();
}

// Dense kinds: the columns of 16 rows side by side. Returns an output with a value that is too
// large for them, or -1.
int64_t Packed::interleave(const Rows& rows, int64_t block) {
    const Matrix& m = matrix_;
    const int64_t first = block * kLanes, lanes = std::min<int64_t>(kLanes, m.outputs - first);
    std::vector<float> values(kLanes * kColumns);
    int64_t too_large = -1;
    auto* floats = reinterpret_cast<float*>(memory_.data()) + first * m.padded_depth;
    auto* halves = reinterpret_cast<uint16_t*>(memory_.data()) + first * m.padded_depth;
    for (int64_t begin = 0; begin < m.depth; begin += kColumns) {
        const int64_t columns = std::min(kColumns, m.depth - begin);
        for (int64_t lane = 0; lane < lanes; ++lane)
            rows.read(first + lane, begin, columns, &values[lane * kColumns]);
        for (int64_t c = 0; c < columns; ++c) {
            const int64_t k = begin + c;
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const float v = values[lane * kColumns + c];
                if (m.kind == Kind::kF32)
                    floats[k * kLanes + lane] = v;
                else if (m.kind == Kind::kBF16)
                    halves[(k / 2 * kLanes + lane) * 2 + k % 2] = to_bf16(v);
                else if (!to_f16(v, halves[k * kLanes + lane]))
                    too_large = first + lane;
            }
        }
    }
    return too_large;
}

// Integer kinds: returns an output with a value that is not finite, or -1.
int64_t Packed::round(const Rows& rows, int64_t block) {
    const int64_t end = std::min((block + 1) * kLanes, matrix_.outputs);
    std::vector<float> values(matrix_.depth);
    std::vector<uint8_t> stored(matrix_.padded_depth);
    for (int64_t n = block * kLanes; n < end; ++n) {
        rows.read(n, 0, matrix_.depth, values.data());
        if (!round_row(n, values.data(), stored.data())) return n;
        store(n, stored.data());
    }
    return -1;
}

bool Packed::round_row(int64_t output, const float* values, uint8_t* stored) {
    const Matrix& m = matrix_;
    bool finite = true;
    for (int64_t g = 0; g < m.groups; ++g) {
        const int64_t begin = g * m.group, count = std::min(m.group, m.depth - begin);
        const int64_t at = lane_at(output, g, m.groups);
        auto* scale = reinterpret_cast<uint16_t*>(own(m.scales)) + at;
        if (m.kind == Kind::kInt8)
            finite &=
                round_int8(values + begin, count, m.narrow ? kNarrow : 127, stored + begin, scale);
        else if (m.zeros)
            finite &= round_int4(values + begin, count, stored + begin, scale, own(m.zeros) + at);
        else
            finite &= round_int4(values + begin, count, stored + begin, scale);
    }
    return finite;
}

void Packed::fill_integer(const Integers& given, int threads) {
    const Matrix& m = matrix_;
    const uint8_t* q = given.q;
    if (!integer()) throw std::invalid_argument("these weights have no scales");
    if ((given.zeros != nullptr) != (m.zeros != nullptr))
        throw std::invalid_argument("zero points do not match what the matrix was made for");
    if ((given.minima != nullptr) != (m.minima != nullptr) ||
        (given.super_scales != nullptr) != (m.super_scales != nullptr) ||
        (given.super_minima != nullptr) != (m.super_minima != nullptr))
        throw std::invalid_argument("minima or supers do not match what the matrix was made for");
    if (given.zeros && std::any_of(given.zeros, given.zeros + m.outputs * m.groups,
                                   [](uint8_t z) { return z > 15; }))
        throw std::invalid_argument("a zero point is more than four bits hold");
    if (m.narrow && std::any_of(q, q + m.outputs * m.depth, [](uint8_t w) {
            const int weight = static_cast<int8_t>(w);
            return weight < -kNarrow || weight > kNarrow;
        }))
        throw std::invalid_argument("a weight is more than seven bits hold");
    require_own_memory();
    const int64_t size = galley::bytes_of(m.scale_type);
    // [outputs, count] of `bytes` each, to their lanes.
    const auto place = [&](int64_t n, const uint8_t* from, const uint8_t* to, int64_t count,
                           int64_t bytes) {
        for (int64_t i = 0; to && i < count; ++i)
            std::memcpy(own(to) + lane_at(n, i, count) * bytes, from + (n * count + i) * bytes,
                        bytes);
    };
    for_each_block(blocks(), threads, [&](int64_t block) {
        std::vector<uint8_t> stored(m.padded_depth);
        const int64_t end = std::min((block + 1) * kLanes, m.outputs);
        for (int64_t n = block * kLanes; n < end; ++n) {
            for (int64_t k = 0; k < m.depth; ++k)
                stored[k] =
                    m.kind == Kind::kInt8 ? q[n * m.depth + k] ^ 0x80 : q[n * m.depth + k] & 15;
            store(n, stored.data());
            place(n, given.scales, m.scales, m.groups, size);
            place(n, given.zeros, m.zeros, m.groups, 1);
            place(n, given.minima, m.minima, m.groups, size);
            place(n, given.super_scales, m.super_scales, m.supers, 2);
            place(n, given.super_minima, m.super_minima, m.supers, 2);
        }
    });
}

// One output's integers, [padded_depth], to their lane of each tile.
void Packed::store(int64_t output, const uint8_t* stored) {
    const bool int4 = matrix_.kind == Kind::kInt4;
    const int64_t step = int4 ? 8 : 4, tile = 4 * kLanes, block = output / kLanes;
    uint8_t* to = memory_.data() + block * matrix_.padded_depth / step * tile + output % kLanes * 4;
    for (int64_t k = 0; k < matrix_.padded_depth; k += step, to += tile) {
        uint32_t four, upper;
        std::memcpy(&four, stored + k, sizeof four);
        if (int4) {
            std::memcpy(&upper, stored + k + 4, sizeof upper);
            four |= upper << 4;
        }
        std::memcpy(to, &four, sizeof four);
    }
}

uint8_t* Packed::own(const uint8_t* part) { return memory_.data() + (part - matrix_.weights); }

// Position of value `index` of an output's `count` in an array next to the weights.
int64_t Packed::lane_at(int64_t output, int64_t index, int64_t count) {
    return (output / kLanes * count + index) * kLanes + output % kLanes;
}

void Packed::require_own_memory() const {
    if (memory_.size() == 0)
        throw std::invalid_argument("this matrix is a view and cannot be filled");
}

InputLayout::InputLayout(const Matrix& shape, Inputs inputs, float step)
    : matrix_(shape), inputs_(inputs), step_(step) {
    const Matrix& m = matrix_;
    if (m.kind == Kind::kF32 || m.kind == Kind::kF16)
        throw std::invalid_argument("float32 and f16 weights are multiplied with floats alone");
    if (inputs == Inputs::kFloats) throw std::invalid_argument("float inputs are not quantized");
    if (!(step >= 0.0f && step <= 1e30f) || (step > 0.0f && inputs != Inputs::kInt8))
        throw std::invalid_argument("only int8 inputs have a step, which is positive and finite");
    if (inputs == Inputs::kInt8) {
        if (!is_integer(m.kind))
            throw std::invalid_argument("bf16 weights are not multiplied with int8");
        sums_ = round_up(m.padded_depth, 64);
        row_bytes_ =
            round_up(sums_ + static_cast<int64_t>(sizeof(InputGroup)) * m.input_groups, 64);
    } else {
        // An odd number of lines: rows a power of two apart share few places of the nearest cache.
        sums_ = 2 * bf16_columns(m);
        row_bytes_ = round_up(sums_ + 4 * m.groups, 64) | 64;
    }
}

// As the kernels lay out a row, but no input of a group is kept apart.
void InputLayout::write_steps(const float* x, uint8_t* row) const {
    const Matrix& m = matrix_;
    auto* q = reinterpret_cast<int8_t*>(row);
    for (int64_t g = 0; g < m.input_groups; ++g) {
        const int64_t begin = g * m.input_group;
        const int64_t end = g + 1 < m.input_groups ? begin + m.input_group : m.padded_depth;
        const int64_t count = std::min(end, m.depth) - begin;
        InputGroup group{};
        group.scale = round_steps(x + begin, count, step_, q + begin)
                          ? step_
                          : std::numeric_limits<float>::quiet_NaN();
        std::fill(q + begin + count, q + end, int8_t{0});
        for (int64_t k = begin; k < end; ++k) group.sum += q[k];
        group.scaled_sum = group.scale * static_cast<float>(group.sum);
        std::memcpy(row + sums_ + g * static_cast<int64_t>(sizeof group), &group, sizeof group);
    }
}

bool InputLayout::suits(const Matrix& other) const {
    const Matrix& m = matrix();
    return m.kind == other.kind && m.depth == other.depth && m.group == other.group;
}

}  // namespace galley
