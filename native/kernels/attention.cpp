// Attention in vector registers.
#include "attention_worker.hpp"
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {

using Kernel = AttentionKernels<InVectors>;

void attend(const Attend& a) { Kernel::attend(a); }
void attend_chunk(const Attend& a, int64_t chunk, float* partial) {
    Kernel::attend_chunk(a, chunk, partial);
}
void merge_chunks(const Attend& a, float* partials, int64_t count) {
    Kernel::merge_chunks(a, partials, count);
}
void attention_weights(const Attend& a) { Kernel::attention_weights(a); }

}  // namespace GALLEY_ISA
}  // namespace galley
