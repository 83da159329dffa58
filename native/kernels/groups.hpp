// What each group of an integer matrix has beside its weights: sixteen outputs' at a time.
#pragma once

#include "vec.hpp"

namespace galley {
namespace GALLEY_ISA {

GALLEY_INLINE Floats load_scales(const Matrix& m, int64_t at) {
    if (m.scale_type == FloatType::kBF16)
        return load_bf16(reinterpret_cast<const uint16_t*>(m.scales) + at);
    if (m.scale_type == FloatType::kF16)
        return load_f16(reinterpret_cast<const uint16_t*>(m.scales) + at);
    return load(reinterpret_cast<const float*>(m.scales) + at);
}

// What is stored for zero, `other` where the matrix does not say, four times in each lane.
GALLEY_INLINE Bytes load_offsets(const Matrix& m, int64_t at, int32_t other) {
    const Ints zeros = m.zeros ? load_uint8(m.zeros + at) : splat_int(other);
    Bytes r;
    GALLEY_PARTS r.p[i] = (UintPart)zeros.p[i] * 0x01010101u;
    return r;
}

// Of int4 weights each lane's first four columns, or with `from` 4 the others.
GALLEY_INLINE Bytes nibbles(Bytes w, int64_t from) {
    Bytes r;
    GALLEY_PARTS r.p[i] = (w.p[i] >> from) & 0x0f0f0f0f;
    return r;
}

}  // namespace GALLEY_ISA
}  // namespace galley
