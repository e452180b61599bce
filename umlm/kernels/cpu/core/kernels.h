// The kernels: plain functions on raw pointers, free of MLX; one table of tables per instruction set.
#pragma once

#include "core/quantized.h"

namespace umlm {

struct Kernels {
  const char* name;
  QuantizedKernels quantized;
};

// The table of the best instruction set that this processor has, or the one that UMLM_ISA or set_isa (core/isa.h) names.
const Kernels& kernels();

}  // namespace umlm
