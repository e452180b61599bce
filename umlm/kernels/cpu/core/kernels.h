// The kernels: plain functions on raw pointers, free of MLX; one table of tables per instruction set.
#pragma once

#include "core/attention.h"
#include "core/dense.h"
#include "core/quantized.h"
#include "core/recurrence.h"
#include "core/rows.h"
#include "core/sampling.h"

namespace umlm {

struct Kernels {
  const char* name;
  QuantizedKernels quantized;
  RowKernels rows;
  RopeKernels rope;
  PageKernels pages;
  AttentionKernels attention;
  DenseKernels dense;
  SamplingKernels sampling;
  RecurrenceKernels recurrence;
};

// The table of the best instruction set that this processor has, or the one that UMLM_ISA or set_isa (core/isa.h) names.
const Kernels& kernels();

}  // namespace umlm
