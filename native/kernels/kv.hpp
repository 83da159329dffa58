// Elements of the KV cache, whatever their type.
#pragma once

#include "vec.hpp"

namespace galley {
namespace GALLEY_ISA {

GALLEY_INLINE Floats load_as_floats(const float* a) { return load(a); }
GALLEY_INLINE Floats load_as_floats(const uint16_t* a) { return load_bf16(a); }
GALLEY_INLINE Floats load_as_floats(const int8_t* a) { return load_int8(a); }

GALLEY_INLINE uint8_t* piece(const Cache& c, int64_t block, int64_t kv_head) {
    return c.data + (block * c.kv_heads + kv_head) * c.head_bytes;
}
// Of 16 tokens each.
GALLEY_INLINE float* key_scales(const Cache& c, uint8_t* piece) {
    return reinterpret_cast<float*>(piece + c.scales);
}
GALLEY_INLINE float* value_scales(const Cache& c, uint8_t* piece) {
    return key_scales(c, piece) + kBlockTokens;
}

}  // namespace GALLEY_ISA
}  // namespace galley
