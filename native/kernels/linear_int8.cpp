// Linear layers with int8 and int4 weights and int8 activations, on tiles alone.
#include "linear_int8.hpp"

namespace galley {
namespace GALLEY_ISA {

void linear_int8(const Linear& l, int64_t begin, int64_t end, uint8_t*) {
    multiply_tiles(l, begin, end);
}

}  // namespace GALLEY_ISA
}  // namespace galley
