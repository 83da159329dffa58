// The kernels of an instruction set, across its files. A set has a table of its own, where kernels
// that it has no better instructions for are those of another (its base): the linker finds the ones
// that are compiled for it in the namespace GALLEY_ISA.
#pragma once

#include "vec.hpp"

namespace galley {

const Kernels& GALLEY_KERNELS();       // of this set
const Kernels& GALLEY_BASE_KERNELS();  // of its base; declared alone where it has none

namespace GALLEY_ISA {

void linear_float(const Linear&, int64_t begin, int64_t end, uint8_t* scratch);
void linear_bf16(const Linear&, int64_t begin, int64_t end, uint8_t* scratch);
void linear_int8(const Linear&, int64_t begin, int64_t end, uint8_t* scratch);
void low_rank(const LowRank&);
void quantize_input(const Matrix&, Inputs, const float* x, uint8_t* row, int64_t sums);
void embed(const Matrix&, int64_t index, float* y);
void rms_norm(const float* x, const float* weight, float eps, int64_t width, int64_t group,
              float* y);
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t width,
                int64_t group, float* y);
void rope(const float* x, const float* cos, const float* sin, int64_t pairs, int64_t width,
          int64_t head_dim, float* y);
void rope_adjacent(const float* x, const float* cos, const float* sin, int64_t pairs, int64_t width,
                   int64_t head_dim, float* y);
extern const Elementwise kElementwise[];
void write_kv(const Cache&, const float* k, const float* v, int64_t block, int64_t slot);
void write_kv_block(const Cache&, const float* k, int64_t k_stride, const float* v,
                    int64_t v_stride, int64_t block);
void attend(const Attend&);
void attend_chunk(const Attend&, int64_t chunk, float* partial);
void merge_chunks(const Attend&, float* partials, int64_t count);
void attention_weights(const Attend&);
void recur(const Recurrence&);
void causal_conv(const CausalConv&);
int64_t find_above(const float* x, int64_t n, float bar, int64_t* ids);
int64_t softmax_weights(const float* x, int64_t n, float most, float scale, int32_t* weights);
double sum_exp(const float* x, int64_t n, double most);
int64_t multiply_int8(int64_t steps);
int64_t multiply_bf16(int64_t steps);
int64_t multiply_f32(int64_t steps);
void read(const uint8_t* data, int64_t bytes);

}  // namespace GALLEY_ISA
}  // namespace galley
