// Products with dense matrices.
#pragma once

#include "core/types.h"

namespace umlm {

// out[m, n] = sum_k x[m, k] weight[n, k] + bias[n]; all row-contiguous. The order of a sum depends on `columns` alone.
struct DenseProduct {
  int64_t rows;     // of x and out
  int64_t outputs;  // rows of weight
  int64_t columns;
  const void* x;  // of DenseKernels::operand_type
  const void* weight;
  const void* bias;  // may be null
  void* out;
  Type x_type, weight_type, bias_type, out_type;
};

// A product is computed in independent blocks of so many rows and outputs.
constexpr int64_t kBlockRows = 96;
constexpr int64_t kBlockOutputs = 32;

struct DenseKernels {
  // What x has to be for a product with these types.
  Type (*operand_type)(Type x, Type weight);
  // One block of out: rows from `row` on and outputs from `output` on, as far as there are any.
  void (*block)(const DenseProduct& product, int64_t row, int64_t output);
};

}  // namespace umlm
