// Quantized matrices and their products.
#pragma once

#include "core/types.h"

namespace umlm {

// How the values of a quantized matrix lie in memory: MLX's modes, then ggml's blocks.
enum class Layout : int {
  affine2, affine3, affine4, affine5, affine6, affine8, mxfp4, mxfp8, nvfp4,
  ggml_q4_0, ggml_q4_1, ggml_q5_0, ggml_q5_1, ggml_q8_0, ggml_iq4_nl, ggml_mxfp4,
  ggml_q2_k, ggml_q3_k, ggml_q4_k, ggml_q5_k, ggml_q6_k, ggml_iq4_xs,
};

// A quantized matrix [rows, columns]; every row of weight is row_bytes long.
// MLX's modes have columns / group scales a row, ggml's blocks hold their own.
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

// Rows of activations, made ready by QuantizedKernels::prepare for products with matrices of one layout.
struct Operand {
  int64_t rows;
  int64_t columns;
  const void* source;    // [rows, columns] of source_type
  Type source_type;
  const float* values;   // [rows, columns] float32: the source itself, or a copy where the unit wants one
  int num_digits;        // bytes of a fixed-point value
  const uint8_t* digits; // fixed-point values of a step by their digits, [rows, digits_stride]; null where not wanted
  const float* units;    // what the last digit is worth, [rows, units_stride]: one a step
  const float* sums;     // [rows, sums_stride] sums over groups; null where not wanted
  int64_t digits_stride, units_stride, sums_stride;

  // The rows [first, first + count).
  Operand slice(int64_t first, int64_t count) const {
    Operand part = *this;
    const int64_t source_bytes = columns * (source_type == Type::f32 ? 4 : 2);
    part.rows = count;
    part.source = static_cast<const uint8_t*>(source) + first * source_bytes;
    part.values = values == nullptr ? nullptr : values + first * columns;
    part.digits = digits == nullptr ? nullptr : digits + first * digits_stride;
    part.units = units == nullptr ? nullptr : units + first * units_stride;
    part.sums = sums == nullptr ? nullptr : sums + first * sums_stride;
    return part;
  }
};

struct QuantizedKernels {
  // Bytes that operand needs for one row of activations.
  int64_t (*prepared_bytes)(const QuantizedMatrix& w);
  // Lay out an Operand for `rows` rows of activations in `scratch`, of rows * prepared_bytes bytes. A unit that multiplies
  // integers takes activations as fixed-point numbers of so many bytes, 1 to 3.
  Operand (*operand)(const QuantizedMatrix& w, const void* source, Type type, int digits, int64_t rows, void* scratch);
  // Fill rows [begin, end) of the Operand.
  void (*prepare)(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end);

  // out[m * stride + n] = sum_k x[m, k] W[n, k] for n in [begin, end) and all m
  void (*quantized_matmul)(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                           int64_t end);
  // out[m * columns + k] = sum_n x[m, n] W[n, k] for k in [begin, end), multiples of 256, and all m; x is [rows of x,
  // W's rows]
  void (*quantized_matmul_t)(const QuantizedMatrix& w, const float* x, int64_t rows, float* out, int64_t begin,
                             int64_t end);
  // out[k] = W[n, k] in float32
  void (*dequantize_row)(const QuantizedMatrix& w, int64_t n, float* out);
};

}  // namespace umlm
