// AMX: AVX-512 with VNNI, BF16 and GFNI, whose operations these are, and the tiles of ../amx.hpp.
#pragma once

#include "avx512.hpp"
