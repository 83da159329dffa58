// The table of kernels of which linear layers run on emulated AMX.
#include "tables.hpp"

namespace galley {

const Kernels& GALLEY_KERNELS() {
    static const Kernels kernels = [] {
        Kernels k = GALLEY_BASE_KERNELS();
        k.name = GALLEY_NAME;
        k.linear_bf16 = GALLEY_ISA::linear_bf16;
        k.linear_int8 = GALLEY_ISA::linear_int8;
        return k;
    }();
    return kernels;
}

}  // namespace galley
