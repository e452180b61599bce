// What the primitives of recurrent layers share: tokens of a packed row, and outputs beside new states.
#pragma once

#include <functional>
#include <vector>

#include "core/recurrence.h"
#include "core/threads.h"
#include "primitives/row_major.h"

namespace umlm {

// Tokens of x [T, ...]: where they lie, if the values of each lie together, or else a copy.
class PackedRow {
 public:
  explicit PackedRow(const mx::array& x) : type_(type_of(x.dtype())) {
    if (x.size() > 0 && together(x)) {
      base_ = x.data<uint8_t>();
      stride_ = x.strides(0);
    } else {
      copy_.emplace_back(x);
      stride_ = x.size() == 0 ? 0 : x.size() / x.shape(0);
    }
  }

  // To be called where the kernel runs, when the input is computed.
  TokenRows rows() const {
    return {copy_.empty() ? base_ : copy_[0].data(), type_, stride_};
  }

 private:
  static bool together(const mx::array& x) {
    int64_t step = 1;
    for (int axis = x.ndim() - 1; axis > 0; --axis) {
      if (x.shape(axis) != 1 && x.strides(axis) != step) return false;
      step *= x.shape(axis);
    }
    return true;
  }

  Type type_;
  int64_t stride_ = 0;
  const uint8_t* base_ = nullptr;
  std::vector<RowMajor> copy_;  // none, or one
};

inline const float* floats(const RowMajor& rows) { return reinterpret_cast<const float*>(rows.data()); }

// Outputs for tokens, and the requests' states after them. MLX lets only a primitive with one output take over an
// input's memory, so the new states lie in memory of their own.
class Recurrence : public mx::Primitive {
 public:
  Recurrence(mx::Stream stream, std::vector<int64_t> starts) : Primitive(stream), starts_(std::move(starts)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    for (mx::array& out : outputs) out.set_data(mx::allocator::malloc(out.nbytes()));
    mx::cpu::get_command_encoder(stream()).dispatch(work(inputs, outputs));
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(name()) + " runs on CPUs and was asked to run on a GPU");
  }

 protected:
  virtual std::function<void()> work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const = 0;

  std::vector<int64_t> starts_;  // request r owns tokens [starts[r], starts[r + 1])
};

// Call f(request, part, scratch) for all parts of all requests; f needs `floats` values of scratch and takes about
// `cost` steps on average.
template <typename F>
void for_each_part(int64_t requests, int64_t parts, int64_t cost, int64_t floats, F&& f) {
  // steps that are worth a thread's wake-up
  constexpr int64_t kWorth = 16384;
  parallel_for(requests * parts, kWorth / (cost + 1) + 1, [&](int64_t begin, int64_t end) {
    Scratch scratch(floats * sizeof(float));
    for (int64_t i = begin; i < end; ++i) f(i / parts, i % parts, reinterpret_cast<float*>(scratch.data()));
  });
}

}  // namespace umlm
