// AVX-512 with neither VNNI nor BF16: Skylake-X.
#pragma once

#include "x86_512.hpp"
// And, of these registers:
#include "bf16_widened.hpp"
#include "int8_maddubs.hpp"
