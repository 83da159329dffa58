// AVX-512 with VNNI, BF16 and GFNI: Zen 4, Sapphire Rapids.
#pragma once

#include "x86_512.hpp"
// And, of these registers:
#include "bf16_avx512.hpp"
#include "int8_vnni512.hpp"
