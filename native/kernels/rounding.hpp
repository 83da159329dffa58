// How a row of floats becomes integers from -127 to 127.
#pragma once

#include "vec.hpp"

namespace galley {
namespace GALLEY_ISA {

struct Rounding {
    float scale;    // what an integer stands for; NaN where the row is not finite
    float inverse;  // 0: every integer is 0
};

GALLEY_INLINE Rounding rounding_of(const float* x, int64_t count) {
    const Floats greatest = splat(__FLT_MAX__);
    Floats high = splat(0.0f);
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
        const Floats v = abs(load_some(x + i, count - i));
        high = max(high, v);
        bad |= not_at_most(v, greatest);
    }
    if (bad) return {__builtin_nanf(""), 0.0f};
    const float most = largest(high);
    // Below 1e-30 the quotient would overflow; such a row is zero for every purpose.
    if (most <= 1e-30f) return {0.0f, 0.0f};
    return {most / 127.0f, 127.0f / most};
}

GALLEY_INLINE Ints round(const Rounding& r, Floats x) {
    return r.inverse != 0.0f ? to_ints(x * splat(r.inverse)) : splat_int(0);
}

}  // namespace GALLEY_ISA
}  // namespace galley
