// Powers of two by integer arithmetic on the exponent of a float.
#pragma once

#include "parts.hpp"

namespace galley {
namespace GALLEY_ISA {

// The nearest integers of floats from -126 to 127: exponents of powers of two.
struct Exponents {
    Ints n;
};
GALLEY_INLINE Exponents nearest_exponents(Floats a) { return {to_ints(a)}; }
GALLEY_INLINE Floats to_floats(Exponents e) { return to_floats(e.n); }

// a * 2^e, or 0 where x is below `lowest`.
GALLEY_INLINE Floats scale_by_power(Floats a, Exponents e, Floats x, float lowest) {
    Floats result;
    GALLEY_PARTS {
        const FloatPart scaled = (FloatPart)((IntPart)a.p[i] + (e.n.p[i] << 23));
        result.p[i] = x.p[i] < lowest ? FloatPart{} : scaled;
    }
    return result;
}

}  // namespace GALLEY_ISA
}  // namespace galley
