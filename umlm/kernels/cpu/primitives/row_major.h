// What the primitives of row kernels share: inputs in row-major order, and a base that runs on CPUs only.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "core/precision.h"
#include "primitives/arrays.h"

namespace umlm {

// The elements of an input in row-major order: where they lie, or a copy that is made when they are asked for.
class RowMajor {
 public:
  explicit RowMajor(const mx::array& array)
      : base_(array.size() == 0 ? nullptr : reinterpret_cast<const uint8_t*>(array.data<uint8_t>())) {
    if (!array.flags().row_contiguous && base_ != nullptr) {
      copy_ = std::make_shared<Copy>(array);
    }
  }

  // To be called where the kernel runs, when the input is computed.
  const uint8_t* data() const {
    if (copy_ == nullptr) return base_;
    copy_->fill(base_);
    return copy_->bytes.data();
  }

 private:
  struct Copy {
    mx::Shape shape;
    mx::Strides strides;
    size_t item;
    Scratch bytes;

    explicit Copy(const mx::array& array)
        : shape(array.shape()), strides(array.strides()), item(array.itemsize()), bytes(array.nbytes()) {}

    void fill(const uint8_t* base) {
      uint8_t* to = bytes.data();
      fill_axis(base, 0, to);
    }

    void fill_axis(const uint8_t* from, size_t axis, uint8_t*& to) {
      if (axis == shape.size()) {
        std::memcpy(to, from, item);
        to += item;
        return;
      }
      const bool last = axis + 1 == shape.size();
      if (last && strides[axis] == 1) {
        std::memcpy(to, from, shape[axis] * item);
        to += shape[axis] * item;
        return;
      }
      for (int i = 0; i < shape[axis]; ++i) {
        fill_axis(from + i * strides[axis] * int64_t(item), axis + 1, to);
      }
    }
  };

  const uint8_t* base_;
  std::shared_ptr<Copy> copy_;
};

// A primitive with one output that runs on CPUs.
class CpuPrimitive : public mx::UnaryPrimitive {
 public:
  using UnaryPrimitive::UnaryPrimitive;

  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error(std::string(name()) + " runs on CPUs and was asked to run on a GPU");
  }

 protected:
  const Precision precision_ = precision();
};

// Memory for out: a row-contiguous input's own where nothing else needs it any more.
inline void allocate_like(const mx::array& input, mx::array& out) {
  if (input.is_donatable() && input.flags().row_contiguous && input.itemsize() == out.itemsize()) {
    out.copy_shared_buffer(input);
  } else {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
}

// The gradients of `function` at primals: those of the arguments in argnums. It must be made of MLX's own operations.
template <typename Function>
std::vector<mx::array> gradients(Function function, const std::vector<mx::array>& primals,
                                 const std::vector<mx::array>& cotangents, const std::vector<int>& argnums) {
  auto all = mx::vjp(std::function<std::vector<mx::array>(const std::vector<mx::array>&)>(function), primals, cotangents)
                 .second;
  std::vector<mx::array> wanted;
  for (int number : argnums) {
    wanted.push_back(all[number]);
  }
  return wanted;
}

}  // namespace umlm
