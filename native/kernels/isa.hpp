// Which of the compiled instruction sets runs here.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace galley {

// Names of the sets this CPU can run, best first; never empty.
std::vector<std::string> supported_isas();

// The kernels of `name`. Throws std::invalid_argument for a set that is not built or not supported.
const Kernels& kernels(const std::string& name);

}  // namespace galley
