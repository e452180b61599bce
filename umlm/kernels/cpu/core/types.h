// Dtypes that kernels read and write.
#pragma once

#include <cstdint>

namespace umlm {

enum class Type : int { f32, f16, bf16 };

}  // namespace umlm
