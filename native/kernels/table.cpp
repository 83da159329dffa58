// All kernels of an instruction set without a base.
#include "tables.hpp"

namespace galley {

const Kernels& GALLEY_KERNELS() {
    using namespace GALLEY_ISA;
    static const Kernels kernels = {
        .name = GALLEY_NAME,
        .linear_float = linear_float,
        .linear_bf16 = linear_bf16,
        .linear_int8 = linear_int8,
        .low_rank = low_rank,
        .quantize_input = quantize_input,
        .embed = embed,
        .rms_norm = rms_norm,
        .layer_norm = layer_norm,
        .rope = rope,
        .rope_adjacent = rope_adjacent,
        .elementwise = kElementwise,
        .write_kv = write_kv,
        .write_kv_block = write_kv_block,
        .attend = attend,
        .attend_chunk = attend_chunk,
        .merge_chunks = merge_chunks,
        .attention_weights = attention_weights,
        .recur = recur,
        .causal_conv = causal_conv,
        .find_above = find_above,
        .softmax_weights = softmax_weights,
        .sum_exp = sum_exp,
        .multiply_int8 = multiply_int8,
        .multiply_bf16 = multiply_bf16,
        .multiply_f32 = multiply_f32,
        .read = read,
    };
    return kernels;
}

}  // namespace galley
