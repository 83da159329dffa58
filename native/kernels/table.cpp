#include "tables.hpp"

namespace galley {

namespace GALLEY_ISA {
namespace {

void linear(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) {
#if defined(__AMX_TILE__)
    if (fit_for_amx(l)) return linear_amx(l, begin, end, scratch);
#endif
    (void)scratch;
    if (!is_integer(l.matrix->kind))
        linear_dense(l, begin, end);
    else if (l.x.type == Inputs::kInt8)
        linear_integer(l, begin, end);
    else
        linear_mixed(l, begin, end);
}

#define GALLEY_STRING_(x) #x
#define GALLEY_STRING(x) GALLEY_STRING_(x)

const Kernels kKernels = {
    GALLEY_STRING(GALLEY_ISA),
    linear,
    prepare,
    embed,
    rms_norm,
    layer_norm,
    rope,
    silu_mul,
    gelu,
    add,
    write_kv,
    write_kv_block,
    attend,
    attend_chunk,
    merge_chunks,
    weigh,
    above,
    weigh_tokens,
    exp_sum,
    multiply_int8,
    multiply_bf16,
    multiply_f32,
    read,
};

}  // namespace
}  // namespace GALLEY_ISA

#define GALLEY_GETTER_(isa) kernels_##isa
#define GALLEY_GETTER(isa) GALLEY_GETTER_(isa)

const Kernels& GALLEY_GETTER(GALLEY_ISA)() { return GALLEY_ISA::kKernels; }

}  // namespace galley
