// Quantized matrices and their products.
#pragma once

#include "core/types.h"

namespace umlm {

// How the values of a quantized matrix lie in memory: MLX's modes.
enum class Layout : int { affine2, affine3, affine4, affine5, affine6, affine8, mxfp4, mxfp8, nvfp4 };

// A quantized matrix [rows, columns]; every row of weight is row_bytes long, and has columns / group scales.
struct QuantizedMatrix {
  Layout layout;
  int group;        // values that share a scale
  Type scale_type;  // of affine scales and biases; other layouts have byte scales of their own kind
  int64_t rows;
  int64_t columns;
  int64_t row_bytes;
  const uint8_t* weight;
  const uint8_t* scales;
  const uint8_t* biases;  // affine only
};

// Rows of activations, made ready by Kernels::prepare for products with matrices of one layout.
struct Operand {
  int64_t rows;
  int64_t columns;
  const float* values;   // [rows, columns] float32
  const uint16_t* high;  // bf16 in the order that the layout wants, [rows, stride]; null where not wanted
  const uint16_t* low;   // bf16, what high leaves of values; null where high is exact
  const float* sums;     // [rows, columns / group] sums over groups
  int64_t stride;
};

struct QuantizedKernels {
  // Bytes that prepare needs for one row of activations.
  int64_t (*prepared_bytes)(const QuantizedMatrix& w);
  // Fill the Operand of row m from values; `scratch` has rows * prepared_bytes bytes. exact: high holds all.
  Operand (*operand)(const QuantizedMatrix& w, const float* values, int64_t rows, bool exact, void* scratch);
  void (*prepare)(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end);

  // out[m * stride + n] = sum_k x[m, k] W[n, k] for n in [begin, end) and all m
  void (*quantized_matmul)(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                           int64_t end);
};

}  // namespace umlm
