// Small pieces that the primitives share: dtypes and float32 copies of inputs.
#pragma once

#include <stdexcept>
#include <string>

#include "core/kernels.h"
#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"

namespace umlm {

namespace mx = mlx::core;

inline Type type_of(mx::Dtype dtype) {
  if (dtype == mx::float32) return Type::f32;
  if (dtype == mx::float16) return Type::f16;
  if (dtype == mx::bfloat16) return Type::bf16;
  throw std::invalid_argument("a kernel needs float32, float16 or bfloat16");
}

// Bytes that live as long as the lambda that holds them.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : data_(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  uint8_t* data() { return data_; }

 private:
  uint8_t* data_;
};

}  // namespace umlm
