// Small pieces that the primitives share: dtypes and float32 copies of inputs.
#pragma once

#include <stdexcept>
#include <string>

#include "core/kernels.h"
#include "core/memory.h"
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
  explicit Scratch(size_t bytes) : data_(take_memory(bytes)) {}
  ~Scratch() { give_memory(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  uint8_t* data() { return data_; }

 private:
  uint8_t* data_;
};

// MLX's allocator for CPUs keeps the size of what it gives in the eight bytes before; a Buffer points to the size.
// Other allocators' buffers are no plain pointers.
inline constexpr int64_t kSizeBytes = 8;
bool buffers_are_plain();

// Memory for a result that comes from take_memory, so that it is used again and no page is cleared anew.
mx::allocator::Data result_memory(size_t bytes);

}  // namespace umlm
