#include "packing/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace galley {

namespace {

constexpr int32_t kInfinity = 0x7f800000;
// Added to a float below 2^22 it leaves the nearest integer, ties to even, in the low bits of the
// sum. Compiled without contraction: the product before it must be rounded on its own.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

int32_t bits_of(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

int32_t nearest(float value) { return bits_of(value + kRound) - bits_of(kRound); }

float half_to_float(uint16_t half) {
    const float magnitude = float_of(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
    const float value = (half & 0x7c00) != 0x7c00 ? magnitude
                        : (half & 0x3ff) != 0     ? float_of(0x7fc00000)
                                                  : float_of(kInfinity);
    return half & 0x8000 ? -value : value;
}

float bf16_to_float(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

// The bits of the largest magnitude. Floats that are not negative are ordered as their bits are,
// and NaN comes after infinity; unlike a maximum of floats this one compiles to vectors.
int32_t largest_magnitude(const float* values, int64_t count) {
    int32_t most = 0;
    for (int64_t k = 0; k < count; ++k) most = std::max(most, bits_of(values[k]) & 0x7fffffff);
    return most;
}

float inverse(float scale) { return std::fabs(scale) > 1e-30f ? 1.0f / scale : 0.0f; }

void round_all(const float* values, int64_t count, float scale, int32_t zero, int32_t most,
               uint8_t* stored) {
    const float per_step = inverse(scale);
    for (int64_t k = 0; k < count; ++k) {
        const int32_t step = nearest(values[k] * per_step) + zero;
        stored[k] = static_cast<uint8_t>(std::min(std::max(step, 0), most));
    }
}

}  // namespace

void widen(const uint8_t* source, FloatType type, int64_t count, float* values) {
    if (type == FloatType::kF32) {
        std::memcpy(values, source, 4 * count);
        return;
    }
    for (int64_t k = 0; k < count; ++k) {
        uint16_t half;
        std::memcpy(&half, source + 2 * k, sizeof half);
        values[k] = type == FloatType::kF16 ? half_to_float(half) : bf16_to_float(half);
    }
}

uint16_t to_bf16(float value) {
    if (value != value) return 0x7fc0;
    const auto bits = static_cast<uint32_t>(bits_of(value));
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

bool to_f16(float value, uint16_t& half) {
    const auto bits = static_cast<uint32_t>(bits_of(value));
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t rounded;
    if (magnitude > static_cast<uint32_t>(kInfinity)) {
        rounded = 0x7e00;
    } else if (magnitude < 0x38800000) {  // below 2^-14: a whole number of 2^-24, in the low bits
        rounded = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    } else {
        rounded = std::min<uint32_t>((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13,
                                     0x7c00);
    }
    half = static_cast<uint16_t>(sign | rounded);
    return rounded != 0x7c00 || magnitude == static_cast<uint32_t>(kInfinity);
}

bool round_int8(const float* values, int64_t count, int steps, uint8_t* stored, uint16_t* scale) {
    const int32_t most = largest_magnitude(values, count);
    if (most >= kInfinity) return false;
    *scale = to_bf16(float_of(most) / static_cast<float>(steps));
    round_all(values, count, bf16_to_float(*scale), 128, 255, stored);
    return true;
}

bool round_int4(const float* values, int64_t count, uint8_t* stored, uint16_t* scale) {
    const int32_t most = largest_magnitude(values, count);
    if (most >= kInfinity) return false;
    const float* extreme = std::find_if(
        values, values + count, [&](float value) { return (bits_of(value) & 0x7fffffff) == most; });
    *scale = to_bf16(*extreme / -8.0f);
    round_all(values, count, bf16_to_float(*scale), 8, 15, stored);
    return true;
}

bool round_int4(const float* values, int64_t count, uint8_t* stored, uint16_t* scale,
                uint8_t* zero) {
    if (largest_magnitude(values, count) >= kInfinity) return false;
    float low = 0.0f, high = 0.0f;
    for (int64_t k = 0; k < count; ++k) {
        low = values[k] < low ? values[k] : low;
        high = values[k] > high ? values[k] : high;
    }
    const float span = high - low;
    if (bits_of(span) >= kInfinity) return false;
    *scale = to_bf16(span / 15.0f);
    const float step = bf16_to_float(*scale);
    *zero = static_cast<uint8_t>(std::min(std::max(nearest(-low * inverse(step)), 0), 15));
    round_all(values, count, step, *zero, 15, stored);
    return true;
}

bool round_steps(const float* values, int64_t count, float step, int8_t* steps) {
    for (int64_t k = 0; k < count; ++k) {
        const float clipped = std::min(std::max(values[k] / step, -127.0f), 127.0f);
        steps[k] = static_cast<int8_t>(nearest(clipped));
    }
    return largest_magnitude(values, count) < kInfinity;
}

}  // namespace galley
