// What a set has that adds dot products of bytes to its base.
#include "tables.hpp"

namespace galley {

const Kernels& GALLEY_KERNELS() {
    static const Kernels kernels = [] {
        Kernels k = GALLEY_BASE_KERNELS();
        k.name = GALLEY_NAME;
        k.linear_int8 = GALLEY_ISA::linear_int8;
        k.multiply_int8 = GALLEY_ISA::multiply_int8;
        return k;
    }();
    return kernels;
}

}  // namespace galley
