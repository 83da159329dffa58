// AVX-512 with VNNI and BF16: Zen 4, Cooper Lake.
#pragma once

#include "x86_512.hpp"
// And, of these registers:
#include "bf16_avx512.hpp"
#include "int8_vnni512.hpp"
