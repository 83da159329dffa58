// AVX-512 with VNNI: Cascade Lake, Cooper Lake, Ice Lake.
#pragma once

#include "x86_512.hpp"
// And, of these registers:
#include "bf16_widened.hpp"
#include "int8_vnni512.hpp"
