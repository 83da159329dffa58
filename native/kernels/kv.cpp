// One token's keys and values on their way into the cache.
#include "kv.hpp"

#include "rounding.hpp"
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// One head's key or value: element d goes to out[d * stride].
void write_head(const float* x, int64_t count, float* out, int64_t stride) {
    for (int64_t d = 0; d < count; ++d) out[d * stride] = x[d];
}

void write_head(const float* x, int64_t count, uint16_t* out, int64_t stride) {
    for (int64_t d = 0; d < count; ++d) out[d * stride] = to_bf16(x[d]);
}

void write_head(const float* x, int64_t count, int8_t* out, int64_t stride, float* scale) {
    const Rounding rounding = rounding_of(x, count);
    *scale = rounding.scale;
    for (int64_t d = 0; d < count; d += kLanes) {
        int8_t q[kLanes];
        store_bytes(q, round(rounding, load_some(x + d, count - d)));
        const int64_t end = count - d < kLanes ? count - d : kLanes;
        for (int64_t i = 0; i < end; ++i) out[(d + i) * stride] = q[i];
    }
}

template <class T>
void write(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    for (int64_t h = 0; h < c.kv_heads; ++h) {
        uint8_t* to = piece(c, block, h);
        T* key = reinterpret_cast<T*>(to) + slot;
        T* value = reinterpret_cast<T*>(to + c.values) + slot * c.padded_dim;
        const int64_t at = h * c.head_dim;
        if constexpr (sizeof(T) == 1) {
            write_head(k + at, c.head_dim, key, kBlockTokens, key_scales(c, to) + slot);
            write_head(v + at, c.head_dim, value, 1, value_scales(c, to) + slot);
        } else {
            write_head(k + at, c.head_dim, key, kBlockTokens);
            write_head(v + at, c.head_dim, value, 1);
        }
    }
}

// Of a token with an even number the neighbour's values are left as they are.
void write_pairs(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    for (int64_t h = 0; h < c.kv_heads; ++h, k += c.head_dim, v += c.head_dim) {
        uint8_t* to = piece(c, block, h);
        uint16_t* key = reinterpret_cast<uint16_t*>(to) + 2 * slot;
        uint16_t* value =
            reinterpret_cast<uint16_t*>(to + c.values) + slot / 2 * 2 * c.padded_dim + slot % 2;
        for (int64_t d = 0; d < c.head_dim; ++d) {
            key[d / 2 * 2 * kBlockTokens + d % 2] = to_bf16(k[d]);
            value[2 * d] = to_bf16(v[d]);
        }
        if (c.head_dim % 2) key[c.head_dim / 2 * 2 * kBlockTokens + 1] = 0;
    }
}

}  // namespace

void write_kv(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    if (c.type == KvType::kInt8) return write<int8_t>(c, k, v, block, slot);
    if (c.type == KvType::kBF16) return write<uint16_t>(c, k, v, block, slot);
    if (c.type == KvType::kPairs) return write_pairs(c, k, v, block, slot);
    write<float>(c, k, v, block, slot);
}

}  // namespace GALLEY_ISA
}  // namespace galley
