// What AMX adds to its base.
#include "tables.hpp"

namespace galley {

const Kernels& GALLEY_KERNELS() {
    static const Kernels kernels = [] {
        Kernels k = GALLEY_BASE_KERNELS();
        k.name = GALLEY_NAME;
        k.linear_bf16 = GALLEY_ISA::linear_bf16;
        k.linear_int8 = GALLEY_ISA::linear_int8;
        k.attend = GALLEY_ISA::attend;
        k.attend_chunk = GALLEY_ISA::attend_chunk;
        k.merge_chunks = GALLEY_ISA::merge_chunks;
        k.attention_weights = GALLEY_ISA::attention_weights;
        k.multiply_int8 = GALLEY_ISA::multiply_int8;
        k.multiply_bf16 = GALLEY_ISA::multiply_bf16;
        return k;
    }();
    return kernels;
}

}  // namespace galley
