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

  // Rows of x, and of out, are of x_type, held in float32.
  void run(const float* x, Type x_type, int64_t rows, int64_t columns, float* out) const {
    const uint8_t* values = weight.data();
    parallel_for(rows, 16384 / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
      float* to = out + begin * columns;
      kernels().rows.rms_norm(x + begin * columns, Type::f32, values, type, offset, eps, end - begin, columns, to);
      round_to(x_type, to, (end - begin) * columns);
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

// Rows of a type in float32: those of an array, or copies of them.
class WideRows {
 public:
  WideRows(const void* rows, Type type, int64_t count) : copy_(type == Type::f32 ? 0 : count * sizeof(float)) {
    data_ = static_cast<const float*>(rows);
    if (type == Type::f32) return;
    auto* values = reinterpret_cast<float*>(copy_.data());
    kernels().rows.widen(rows, type, count, values);
    data_ = values;
  }
  const float* data() const { return data_; }

 private:
  Scratch copy_;
  const float* data_;
};

// out = x + y, or x + norm(y), of a type; y is overwritten.
inline void add_residual(const float* x, float* y, const NormInput* norm, Type type, int64_t rows, int64_t columns,
                         void* out) {
  if (norm != nullptr) norm->run(y, type, rows, columns, y);
  parallel_for(rows * columns, 1 << 15, [&](int64_t begin, int64_t end) {
    float* sums = type == Type::f32 ? static_cast<float*>(out) : y;
    for (int64_t i = begin; i < end; ++i) {
      sums[i] = x[i] + y[i];
    }
    if (type != Type::f32) {
      kernels().rows.narrow(y + begin, type, end - begin, static_cast<uint16_t*>(out) + begin);
    }
  });
}

}  // namespace umlm
