// AVX2: x86 CPUs since 2013.
#pragma once

#include "x86_256.hpp"
// And, of these registers:
#include "int8_maddubs.hpp"
