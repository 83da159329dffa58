// AMX: AVX-512 with VNNI and BF16, whose operations these are, and tiles, which ../amx.hpp has.
#pragma once

#include "avx512.hpp"
