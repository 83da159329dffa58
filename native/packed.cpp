#include "packed.hpp"

#include <cstring>
#include <stdexcept>

namespace galley {

namespace {

// Longer groups could overflow the 32-bit sums: 65536 * 255 * 127 < 2^31.
constexpr int64_t kLongestGroup = 65536;

int64_t depth_multiple(Kind kind) {
    switch (kind) {
        case Kind::kF32:
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
            return 2 * elements;
        case Kind::kInt8:
            return elements;
        case Kind::kInt4:
            return elements / 2;
    }
    throw std::invalid_argument("unknown weight kind");
}

int64_t scale_bytes(ScaleType type) { return type == ScaleType::kF32 ? 4 : 2; }

float half_to_float(uint16_t v) {
    const uint32_t magnitude = static_cast<uint32_t>(v & 0x7fff) << 13;
    float r;
    std::memcpy(&r, &magnitude, sizeof r);
    r *= 0x1p112f;
    if ((v & 0x7c00) == 0x7c00) r = (v & 0x3ff) ? __builtin_nanf("") : __builtin_inff();
    return v & 0x8000 ? -r : r;
}

float element(const uint8_t* source, ScaleType type, int64_t at) {
    if (type == ScaleType::kF32) {
        float r;
        std::memcpy(&r, source + 4 * at, sizeof r);
        return r;
    }
    uint16_t half;
    std::memcpy(&half, source + 2 * at, sizeof half);
    if (type == ScaleType::kF16) return half_to_float(half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float r;
    std::memcpy(&r, &bits, sizeof r);
    return r;
}

uint16_t to_bf16(float v) {
    if (v != v) return 0x7fc0;
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

Packed::Packed(Kind kind, int64_t outputs, int64_t depth, int64_t group, ScaleType scale_type,
               bool zeros) {
    if (outputs < 1 || depth < 1) throw std::invalid_argument("a weight matrix cannot be empty");
    if (zeros && kind != Kind::kInt4)
        throw std::invalid_argument("only int4 weights have zero points");
    const int64_t padded = round_up(depth, depth_multiple(kind));
    matrix_ = {kind, scale_type, outputs, depth, padded, padded, 0, nullptr, nullptr, nullptr};
    const int64_t blocks = round_up(outputs, kLanes) / kLanes;
    const int64_t weights = round_up(weight_bytes(kind, blocks * kLanes * padded), 64);
    int64_t scales = 0, zero_points = 0;
    if (integer()) {
        matrix_.group = group == 0 ? round_up(depth, 16) : group;
        if (matrix_.group < 16 || matrix_.group % 16 || matrix_.group > kLongestGroup)
            throw std::invalid_argument("a group must be a multiple of 16, at most 65536 long");
        matrix_.groups = round_up(depth, matrix_.group) / matrix_.group;
        scales = round_up(blocks * kLanes * matrix_.groups * scale_bytes(scale_type), 64);
        if (zeros) zero_points = round_up(blocks * kLanes * matrix_.groups, 64);
    }
    memory_ = Memory(weights + scales + zero_points);
    matrix_.weights = memory_.data();
    matrix_.scales = integer() ? memory_.data() + weights : nullptr;
    matrix_.zeros = zeros ? memory_.data() + weights + scales : nullptr;
}

int64_t Packed::sums_offset() const { return round_up(matrix_.padded_depth, 64); }

int64_t Packed::activation_bytes() const {
    if (!integer()) return round_up(weight_bytes(matrix_.kind, matrix_.padded_depth), 64);
    return round_up(sums_offset() + 4 * matrix_.groups + 4, 64);
}

void Packed::fill_dense(const uint8_t* source, ScaleType type) {
    if (integer()) throw std::invalid_argument("integer weights need scales");
    const Matrix& m = matrix_;
    auto* floats = reinterpret_cast<float*>(memory_.data());
    auto* halves = reinterpret_cast<uint16_t*>(memory_.data());
    for (int64_t n = 0; n < m.outputs; ++n) {
        const int64_t base = n / kLanes * m.padded_depth * kLanes, lane = n % kLanes;
        for (int64_t k = 0; k < m.depth; ++k) {
            const float v = element(source, type, n * m.depth + k);
            if (m.kind == Kind::kF32)
                floats[base + k * kLanes + lane] = v;
            else
                halves[base + (k / 2 * kLanes + lane) * 2 + k % 2] = to_bf16(v);
        }
    }
}

void Packed::fill_integer(const uint8_t* q, const uint8_t* scales, const uint8_t* zeros) {
    const Matrix& m = matrix_;
    if (!integer()) throw std::invalid_argument("these weights have no scales");
    if ((zeros != nullptr) != (m.zeros != nullptr))
        throw std::invalid_argument("zero points do not match what the matrix was made for");
    const int64_t step = m.kind == Kind::kInt4 ? 8 : 4, tile = 4 * kLanes;
    const int64_t size = scale_bytes(m.scale_type);
    auto* packed_scales = const_cast<uint8_t*>(m.scales);
    auto* packed_zeros = const_cast<uint8_t*>(m.zeros);
    for (int64_t n = 0; n < m.outputs; ++n) {
        const int64_t block = n / kLanes, lane = n % kLanes;
        uint8_t* w = memory_.data() + block * m.padded_depth / step * tile + 4 * lane;
        const uint8_t* row = q + n * m.depth;
        for (int64_t k = 0; k < m.depth; ++k) {
            uint8_t& byte = w[k / step * tile + k % 4];
            if (m.kind == Kind::kInt8)
                byte = static_cast<uint8_t>(row[k] ^ 0x80);
            else
                byte = static_cast<uint8_t>(byte | (row[k] & 15) << (k % 8 < 4 ? 0 : 4));
        }
        for (int64_t g = 0; g < m.groups; ++g) {
            const int64_t to = (block * m.groups + g) * kLanes + lane, from = n * m.groups + g;
            std::memcpy(packed_scales + to * size, scales + from * size, size);
            if (zeros) packed_zeros[to] = zeros[from];
        }
    }
}

}  // namespace galley
