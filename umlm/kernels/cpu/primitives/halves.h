// What the fused halves of a block share: descriptions that Python makes once per layer, and steps of their work.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "primitives/projection.h"

namespace umlm {

// A norm's weight; the norm multiplies by offset + weight.
struct Norm {
  mx::array weight;
  float eps;
  float offset;
};

// A projection's arrays: weight, scales, biases, bias, those that there are.
struct Weights {
  std::vector<mx::array> arrays;
  ProjectionKind kind;
};

// The inputs of a half, and where each part's arrays begin.
class Parts {
 public:
  int add(const mx::array& array) {
    inputs.push_back(array);
    return static_cast<int>(inputs.size()) - 1;
  }
  int add(const Weights& weights) {
    const int first = static_cast<int>(inputs.size());
    inputs.insert(inputs.end(), weights.arrays.begin(), weights.arrays.end());
    return first;
  }
  std::vector<mx::array> inputs;
};

// A norm as an input of a primitive.
struct NormInput {
  RowMajor weight;
  Type type;
  float eps, offset;

  NormInput(const mx::array& weight, float eps, float offset)
      : weight(weight), type(type_of(weight.dtype())), eps(eps), offset(offset) {}

  void run(const float* x, int64_t rows, int64_t columns, float* out) const {
    const uint8_t* values = weight.data();
    parallel_for(rows, 16384 / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
      kernels().rows.rms_norm(x + begin * columns, Type::f32, values, type, offset, eps, end - begin, columns,
                              out + begin * columns);
    });
  }
};

// Compute projections over the same activations, in pieces shared among threads.
inline void project(const std::vector<Projection*>& projections) {
  int64_t pieces = 0;
  for (const Projection* projection : projections) pieces += projection->num_pieces();
  parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    for (const Projection* projection : projections) {
      const int64_t count = projection->num_pieces();
      if (begin < count && end > 0) projection->run(std::max<int64_t>(begin, 0), std::min(end, count));
      begin -= count;
      end -= count;
    }
  });
}

// out = x + y, or x + norm(y); y is overwritten.
inline void add_residual(const float* x, float* y, const NormInput* norm, int64_t rows, int64_t columns, float* out) {
  if (norm != nullptr) norm->run(y, rows, columns, y);
  parallel_for(rows * columns, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = x[i] + y[i];
    }
  });
}

}  // namespace umlm
