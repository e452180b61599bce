// Elementwise work on rows: dtypes, norms, activations. All arithmetic is float32.
#pragma once

#include "core/types.h"

namespace umlm {

enum class Activation : int { silu, gelu, gelu_tanh, relu, relu2 };

struct RowKernels {
  // Exact values in float32, and the nearest in `type`; NaN and infinities stay what they are.
  void (*widen)(const void* from, Type type, int64_t count, float* to);
  void (*narrow)(const float* from, Type type, int64_t count, void* to);

  // out = x / sqrt(mean(x^2) + eps) * (offset + weight), row by row; without weight the last factor is 1.
  // out has x's type.
  void (*rms_norm)(const void* x, Type type, const void* weight, Type weight_type, float offset, float eps,
                   int64_t rows, int64_t columns, void* out);

  // out = exp(scale x) / sum of exp(scale x), row by row, in x's type. out may be x.
  void (*softmax)(const void* x, Type type, float scale, int64_t rows, int64_t columns, void* out);

  // out = f(gate) * up in gate's type; up may be null. out may be gate.
  void (*activate)(Activation f, const void* gate, Type type, const void* up, Type up_type, int64_t count, void* out);
};

}  // namespace umlm
