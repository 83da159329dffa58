// What a set has that adds products of bfloat16, rounding to it, and halves of bytes to its base.
#include "tables.hpp"

namespace galley {

const Kernels& GALLEY_KERNELS() {
    static const Kernels kernels = [] {
        Kernels k = GALLEY_BASE_KERNELS();
        k.name = GALLEY_NAME;
        k.linear_bf16 = GALLEY_ISA::linear_bf16;
        k.linear_int8 = GALLEY_ISA::linear_int8;
        k.quantize_input = GALLEY_ISA::quantize_input;
        k.write_kv = GALLEY_ISA::write_kv;
        k.write_kv_block = GALLEY_ISA::write_kv_block;
        k.attend = GALLEY_ISA::attend;
        k.attend_chunk = GALLEY_ISA::attend_chunk;
        k.merge_chunks = GALLEY_ISA::merge_chunks;
        k.attention_weights = GALLEY_ISA::attention_weights;
        k.multiply_bf16 = GALLEY_ISA::multiply_bf16;
        return k;
    }();
    return kernels;
}

}  // namespace galley
