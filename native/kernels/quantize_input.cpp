// Activations on their way into a linear layer, and embeddings out of the same matrices.
#include "groups.hpp"
#include "rounding.hpp"
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

void quantize_bf16(const Matrix& m, const float* x, uint8_t* row, int64_t sums) {
    uint16_t* out = reinterpret_cast<uint16_t*>(row);
    int64_t k = 0;
    for (; k + kLanes <= m.depth; k += kLanes) store_bf16(out + k, load(x + k));
    for (; k < m.depth; ++k) out[k] = to_bf16(x[k]);
    for (; k < bf16_columns(m); ++k) out[k] = 0;
    for (int64_t g = 0; g < m.groups; ++g) {
        Floats total = splat(0.0f);
        const int64_t end = g + 1 < m.groups ? (g + 1) * m.group : m.depth;
        // Beyond the depth there are zeros.
        for (k = g * m.group; k < end; k += kLanes) total = total + load_bf16(out + k);
        const float group_sum = sum(total);
        memcpy(row + sums + 4 * g, &group_sum, sizeof group_sum);
    }
}

void quantize_int8(const Matrix& m, const float* x, uint8_t* row, int64_t sums) {
    int8_t* out = reinterpret_cast<int8_t*>(row);
    for (int64_t g = 0; g < m.input_groups; ++g) {
        const int64_t begin = g * m.input_group;
        const int64_t end = g + 1 < m.input_groups ? begin + m.input_group : m.padded_depth;
        const Rounding rounding = rounding_of(x + begin, (end < m.depth ? end : m.depth) - begin);
        Ints total = splat_int(0);
        for (int64_t k = begin; k < end; k += kLanes) {
            const Ints q = round(rounding, load_some(x + k, m.depth > k ? m.depth - k : 0));
            total = total + q;
            store_bytes(out + k, q);
        }
        const int32_t group_sum = sum(total);
        memcpy(row + sums + 4 * g, &group_sum, sizeof group_sum);
        const float scale = rounding.scale, scaled_sum = scale * static_cast<float>(group_sum);
        memcpy(row + sums + 4 * (m.input_groups + g), &scale, sizeof scale);
        memcpy(row + sums + 4 * (2 * m.input_groups + g), &scaled_sum, sizeof scaled_sum);
    }
}

float lane_of(Floats v, int64_t lane) {
    float lanes[kLanes];
    store(lanes, v);
    return lanes[lane];
}

void embed_integer(const Matrix& m, int64_t block, int64_t lane, float* y) {
    const bool int4 = m.kind == Kind::kInt4;
    const int64_t step = int4 ? 8 : 4;
    const uint8_t* w = m.weights + block * m.padded_depth * 4 * kLanes / step + 4 * lane;
    for (int64_t g = 0; g < m.groups; ++g) {
        const float scale = lane_of(load_scales(m, block, g), lane);
        const float least = m.minima ? lane_of(load_minima(m, block, g), lane) : 0.0f;
        const auto zero =
            static_cast<int32_t>(lane_of(to_floats(load_zeros(m, block, g, int4 ? 8 : 128)), lane));
        const int64_t end = g + 1 < m.groups ? (g + 1) * m.group : m.depth;
        for (int64_t k = g * m.group; k < end; ++k) {
            int32_t q = w[k / step * 4 * kLanes + k % 4];
            if (int4) q = k % 8 < 4 ? q & 15 : q >> 4;
            y[k] = static_cast<float>(q - zero) * scale;
            if (m.minima) y[k] += least;
        }
    }
}

}  // namespace

void quantize_input(const Matrix& m, Inputs inputs, const float* x, uint8_t* row, int64_t sums) {
    if (inputs == Inputs::kBF16)
        quantize_bf16(m, x, row, sums);
    else
        quantize_int8(m, x, row, sums);
}

void embed(const Matrix& m, int64_t index, float* y) {
    const int64_t block = index / kLanes, lane = index % kLanes;
    if (m.kind == Kind::kF32) {
        const float* w = reinterpret_cast<const float*>(m.weights) + block * m.depth * kLanes;
        for (int64_t k = 0; k < m.depth; ++k) y[k] = w[k * kLanes + lane];
    } else if (m.kind == Kind::kBF16) {
        const uint16_t* w =
            reinterpret_cast<const uint16_t*>(m.weights) + block * m.padded_depth * kLanes;
        for (int64_t k = 0; k < m.depth; ++k)
            y[k] = from_bf16(w[(k / 2 * kLanes + lane) * 2 + k % 2]);
    } else if (m.kind == Kind::kF16) {
        const uint16_t* w = reinterpret_cast<const uint16_t*>(m.weights) + block * m.depth * kLanes;
        for (int64_t k = 0; k < m.depth; ++k) y[k] = from_f16(w[k * kLanes + lane]);
    } else {
        embed_integer(m, block, lane, y);
    }
}

}  // namespace GALLEY_ISA
}  // namespace galley
