// The instruction sets that kernels exist for. Not for units: they may hold no library code.
#pragma once

#include <string>
#include <vector>

namespace umlm {

// Those that this processor has, best first.
std::vector<std::string> isas();

// Let another one serve from now on. Throws std::invalid_argument for one that is not in isas().
void set_isa(const std::string& name);

}  // namespace umlm
