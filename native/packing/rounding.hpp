// Rounding to nearest, with the bits of galley/quant/rtn.py, which says what and why.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace galley {

inline int64_t bytes_of(FloatType type) {
    return type == FloatType::kF32 ? 4 : type == FloatType::kNested ? 1 : 2;
}

// `count` elements of a checkpoint as floats.
void widen(const uint8_t* source, FloatType type, int64_t count, float* values);

uint16_t to_bf16(float value);

// To the nearest float16, ties to even; NaN stays NaN. False if a finite value becomes infinite.
bool to_f16(float value, uint16_t& half);

// Round one group. `stored`: what the layouts of kernels.hpp keep, weight + zero point (128 for
// int8, 8 for int4, or `zero` where the caller asks for one). Scales are bfloat16; the largest
// magnitude becomes `steps` of them. False, and nothing useful written, if a value or the scale is
// not finite.
bool round_int8(const float* values, int64_t count, int steps, uint8_t* stored, uint16_t* scale);
bool round_int4(const float* values, int64_t count, uint8_t* stored, uint16_t* scale);
bool round_int4(const float* values, int64_t count, uint8_t* stored, uint16_t* scale,
                uint8_t* zero);

// To multiples of `step`, by division as in other programs, from -127 to 127 of them: kernels
// negate inputs, so -128 is left out. False if a value is not finite.
bool round_steps(const float* values, int64_t count, float step, int8_t* steps);

}  // namespace galley
