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

// The largest magnitude of a group, where it is (the first, of equal ones), and the largest of all
// others.
struct Largest {
    float most, second;
    int64_t at;
    bool finite;
};

// Bit i: lane i is `most`, which none is above.
GALLEY_INLINE uint32_t lanes_of(Floats v, float most) {
    return ~not_at_most(splat(most), v) & ((1u << kLanes) - 1);
}

GALLEY_INLINE Largest largest_of(const float* x, int64_t count) {
    const Floats greatest = splat(__FLT_MAX__);
    Floats high = splat(0.0f), next = high;  // of each lane
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
        const Floats v = abs(load_some(x + i, count - i));
        next = max(next, min(high, v));
        high = max(high, v);
        bad |= not_at_most(v, greatest);
    }
    if (bad) return {0.0f, 0.0f, 0, false};
    const float most = largest(high);
    if (most == 0.0f) return {0.0f, 0.0f, 0, true};
    Floats others;
    GALLEY_PARTS others.p[i] = high.p[i] < most ? high.p[i] : next.p[i];
    const uint32_t lanes = lanes_of(high, most);
    const bool several = lanes & (lanes - 1);
    // From the end, so that the first of equal ones is left: a search that stops there would be a
    // branch that no CPU predicts.
    int64_t at = 0;
    for (int64_t i = (count - 1) / kLanes * kLanes; i >= 0; i -= kLanes) {
        const uint32_t here = lanes_of(abs(load_some(x + i, count - i)), most);
        at = here ? i + __builtin_ctz(here | 1u << kLanes) : at;
    }
    return {most, several ? most : largest(others), at, true};
}

// Of the second largest to 127, unless the largest would not fit 16 bits then.
GALLEY_INLINE Rounding rounding_of(const Largest& found) {
    constexpr float kMost = 32767.0f, kOthers = 127.0f;
    if (!found.finite) return {__builtin_nanf(""), 0.0f};
    // Below 1e-30 the quotient would overflow; such a group is zero for every purpose.
    if (found.most <= 1e-30f) return {0.0f, 0.0f};
    if (found.second / kOthers < found.most / kMost)
        return {found.most / kMost, kMost / found.most};
    return {found.second / kOthers, kOthers / found.second};
}

void quantize_int8(const Matrix& m, const float* x, uint8_t* row, int64_t sums) {
    int8_t* out = reinterpret_cast<int8_t*>(row);
    const int64_t step = m.kind == Kind::kInt4 ? 8 : 4;
    for (int64_t g = 0; g < m.input_groups; ++g) {
        const int64_t begin = g * m.input_group;
        const int64_t end = g + 1 < m.input_groups ? begin + m.input_group : m.padded_depth;
        const Largest found = largest_of(x + begin, (end < m.depth ? end : m.depth) - begin);
        const Rounding rounding = rounding_of(found);
        Ints total = splat_int(0);
        for (int64_t k = begin; k < end; k += kLanes) {
            const Ints q = round(rounding, load_some(x + k, m.depth > k ? m.depth - k : 0));
            total = total + q;
            store_bytes(out + k, q);
        }
        const int64_t at = begin + found.at;
        const int32_t most = round(rounding, splat(x[at])).p[0][0];
        out[at] = 0;
        InputGroup group;
        group.sum = sum(total);
        group.scale = rounding.scale;
        group.scaled_sum = group.scale * static_cast<float>(group.sum);
        group.largest = most & 0xffff;
        group.line = static_cast<int32_t>(at / step * 4 * kLanes);
        group.shift = static_cast<int32_t>(at % 4 * 8 + at % step / 4 * 4);
        memcpy(row + sums + g * static_cast<int64_t>(sizeof group), &group, sizeof group);
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
