// Scales and offsets of the groups of an integer matrix, for sixteen outputs at a time.
#pragma once

#include <stddef.h>

#include "vec.hpp"

namespace galley {
namespace GALLEY_ISA {

GALLEY_INLINE int64_t group_at(const Matrix& m, int64_t block, int64_t group) {
    return (block * m.groups + group) * kLanes;
}

// Scales or minima.
GALLEY_INLINE Floats load_values(const Matrix& m, const uint8_t* values, const uint8_t* supers,
                                 int64_t block, int64_t group) {
    const int64_t at = group_at(m, block, group);
    if (m.scale_type == FloatType::kNested) {
        const int64_t super = (block * m.supers + group * m.group / kSuper) * kLanes;
        const Floats units = load_f16(reinterpret_cast<const uint16_t*>(supers) + super);
        return to_floats(load_int8(reinterpret_cast<const int8_t*>(values) + at)) * units;
    }
    if (m.scale_type == FloatType::kBF16)
        return load_bf16(reinterpret_cast<const uint16_t*>(values) + at);
    if (m.scale_type == FloatType::kF16)
        return load_f16(reinterpret_cast<const uint16_t*>(values) + at);
    return load(reinterpret_cast<const float*>(values) + at);
}
GALLEY_INLINE Floats load_scales(const Matrix& m, int64_t block, int64_t group) {
    return load_values(m, m.scales, m.super_scales, block, group);
}
GALLEY_INLINE Floats load_minima(const Matrix& m, int64_t block, int64_t group) {
    return load_values(m, m.minima, m.super_minima, block, group);
}

// What is stored for zero: `other`, where the matrix has no zero points, but of int4 with minima 0.
GALLEY_INLINE Ints load_zeros(const Matrix& m, int64_t block, int64_t group, int32_t other) {
    if (m.zeros) return load_uint8(m.zeros + group_at(m, block, group));
    return splat_int(m.minima && m.kind == Kind::kInt4 ? 0 : other);
}
// The same four times in each lane.
GALLEY_INLINE Bytes load_offsets(const Matrix& m, int64_t block, int64_t group, int32_t other) {
    const Ints zeros = load_zeros(m, block, group, other);
    Bytes r;
    GALLEY_PARTS r.p[i] = (UintPart)zeros.p[i] * 0x01010101u;
    return r;
}

// Of int4 weights each lane's first four columns, or with `from` 4 the others.
GALLEY_INLINE Bytes nibbles(Bytes w, int64_t from) {
    Bytes r;
    GALLEY_PARTS r.p[i] = from ? upper_nibbles(w.p[i]) : w.p[i] & 0x0f0f0f0f;
    return r;
}

// Reads one field at a time: GCC 12 copies a whole InputGroup through memory.
struct Group {
    const uint8_t* at;

    int32_t sum() const { return load_four(at + offsetof(InputGroup, sum)); }
    float scale() const { return load_float(at + offsetof(InputGroup, scale)); }
    float scaled_sum() const { return load_float(at + offsetof(InputGroup, scaled_sum)); }
    int32_t largest() const { return load_four(at + offsetof(InputGroup, largest)); }
    int32_t line() const { return load_four(at + offsetof(InputGroup, line)); }
    int32_t shift() const { return load_four(at + offsetof(InputGroup, shift)); }
};
GALLEY_INLINE Group input_group(const Linear& l, const uint8_t* row, int64_t index) {
    return {row + l.x.sums + index * static_cast<int64_t>(sizeof(InputGroup))};
}

// A group's largest input. For the blocks of a tile it is read once: as far as the compiler knows,
// stores in between could change what a Group reads.
struct Largest {
    int64_t line;
    int32_t shift, input;
};
GALLEY_INLINE Largest largest_input(Group group) {
    return {group.line(), group.shift(), group.largest()};
}

// sums + the products of `largest` and the weights of its column as they are stored in `block`.
GALLEY_INLINE Ints add_largest(Ints sums, Kind kind, const uint8_t* block, Largest largest) {
    const Bytes line = load_bytes(block + largest.line);
    const uint32_t mask = kind == Kind::kInt8 ? 255 : 15;
    GALLEY_PARTS {
        const UintPart weights = shift_right(line.p[i], largest.shift) & mask;
        sums.p[i] = dot_halves(sums.p[i], (IntPart)weights, largest.input);
    }
    return sums;
}

}  // namespace GALLEY_ISA
}  // namespace galley
