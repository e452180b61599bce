// Norms, softmax and activations.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cmath>
#include <stdexcept>

#include "core/threads.h"
#include "primitives/activation.h"
#include "primitives/bind.h"
#include "primitives/row_major.h"

namespace umlm {
namespace {

// Values that are worth a thread's wake-up.
constexpr int64_t kWorth = 16384;

class RmsNorm : public CpuPrimitive {
 public:
  RmsNorm(mx::Stream stream, float eps, float offset) : CpuPrimitive(stream), eps_(eps), offset_(offset) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array& x = inputs[0];
    const bool weighted = inputs.size() > 1;
    RowMajor values(x), weights(weighted ? inputs[1] : x);
    const Type type = type_of(x.dtype()), weight_type = weighted ? type_of(inputs[1].dtype()) : type;
    const int64_t columns = x.shape(-1), rows = columns == 0 ? 0 : x.size() / columns;
    const int64_t row_bytes = columns * x.itemsize();
    allocate_like(x, out);
    auto* result = out.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch([=, eps = eps_, offset = offset_]() {
      const uint8_t* from = values.data();
      const uint8_t* weight = weighted ? weights.data() : nullptr;
      parallel_for(rows, kWorth / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
        kernels().rows.rms_norm(from + begin * row_bytes, type, weight, weight_type, offset, eps, end - begin, columns,
                                result + begin * row_bytes);
      });
    });
  }

  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>&) override {
    auto plain = [eps = eps_, offset = offset_, s = stream()](const std::vector<mx::array>& in) {
      auto y = mx::astype(in[0], mx::float32, s);
      auto mean = mx::mean(mx::square(y, s), -1, true, s);
      y = mx::multiply(y, mx::rsqrt(mx::add(mean, mx::array(eps), s), s), s);
      if (in.size() > 1) {
        y = mx::multiply(y, mx::add(mx::astype(in[1], mx::float32, s), mx::array(offset), s), s);
      }
      return std::vector<mx::array>{mx::astype(y, in[0].dtype(), s)};
    };
    return gradients(plain, primals, cotangents, argnums);
  }

  const char* name() const override { return "UmlmRmsNorm"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const RmsNorm&>(other);
    return eps_ == same.eps_ && offset_ == same.offset_;
  }

 private:
  float eps_, offset_;
};

mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps, float offset,
                   mx::StreamOrDevice s) {
  type_of(x.dtype());
  if (weight && (weight->ndim() != 1 || x.ndim() == 0 || weight->shape(0) != x.shape(-1))) {
    throw std::invalid_argument("rms_norm: the weight must be [n] for x [..., n]");
  }
  std::vector<mx::array> inputs = {x};
  if (weight) {
    type_of(weight->dtype());
    inputs.push_back(*weight);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<RmsNorm>(mx::to_stream(s), eps, offset), inputs);
}

class Softmax : public CpuPrimitive {
 public:
  Softmax(mx::Stream stream, float scale) : CpuPrimitive(stream), scale_(scale) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array& x = inputs[0];
    RowMajor values(x);
    const Type type = type_of(x.dtype());
    const int64_t columns = x.shape(-1), rows = columns == 0 ? 0 : x.size() / columns;
    const int64_t row_bytes = columns * x.itemsize();
    allocate_like(x, out);
    auto* result = out.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch([=, scale = scale_]() {
      const uint8_t* from = values.data();
      parallel_for(rows, kWorth / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
        kernels().rows.softmax(from + begin * row_bytes, type, scale, end - begin, columns, result + begin * row_bytes);
      });
    });
  }

  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>&) override {
    auto plain = [scale = scale_, s = stream()](const std::vector<mx::array>& in) {
      auto scaled = mx::multiply(mx::astype(in[0], mx::float32, s), mx::array(scale), s);
      return std::vector<mx::array>{mx::astype(mx::softmax(scaled, -1, true, s), in[0].dtype(), s)};
    };
    return gradients(plain, primals, cotangents, argnums);
  }

  const char* name() const override { return "UmlmSoftmax"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return scale_ == static_cast<const Softmax&>(other).scale_;
  }

 private:
  float scale_;
};

mx::array softmax(const mx::array& x, float scale, mx::StreamOrDevice s) {
  type_of(x.dtype());
  if (x.ndim() == 0) {
    throw std::invalid_argument("softmax: x must be [..., n], not a single number");
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<Softmax>(mx::to_stream(s), scale), {x});
}

// f(x) of float32 x in MLX's operations, for gradients.
mx::array plain_activation(Activation f, const mx::array& x, const mx::Stream& s) {
  auto times = [&](float a, const mx::array& b) { return mx::multiply(mx::array(a), b, s); };
  switch (f) {
    case Activation::silu: return mx::multiply(x, mx::sigmoid(x, s), s);
    case Activation::gelu:
      return mx::multiply(times(0.5f, x), mx::add(mx::array(1.0f), mx::erf(times(float(M_SQRT1_2), x), s), s), s);
    case Activation::gelu_tanh: {
      auto cube = times(0.044715f, mx::multiply(x, mx::square(x, s), s));
      auto inner = times(0.7978845608028654f, mx::add(x, cube, s));
      return mx::multiply(times(0.5f, x), mx::add(mx::array(1.0f), mx::tanh(inner, s), s), s);
    }
    case Activation::relu: return mx::maximum(x, mx::array(0.0f), s);
    case Activation::relu2: return mx::square(mx::maximum(x, mx::array(0.0f), s), s);
  }
  throw std::logic_error("an activation without plain form");
}

// f(gate), or f(gate) * up.
class Activate : public CpuPrimitive {
 public:
  Activate(mx::Stream stream, Activation f) : CpuPrimitive(stream), f_(f) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array& gate = inputs[0];
    const bool gated = inputs.size() > 1;
    RowMajor gates(gate), ups(gated ? inputs[1] : gate);
    const Type type = type_of(gate.dtype()), up_type = gated ? type_of(inputs[1].dtype()) : type;
    const int64_t item = gate.itemsize(), up_item = gated ? inputs[1].itemsize() : 0, size = gate.size();
    allocate_like(gate, out);
    auto* result = out.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch([=, f = f_]() {
      const uint8_t* from = gates.data();
      const uint8_t* up = gated ? ups.data() : nullptr;
      parallel_for(size, kWorth, [&](int64_t begin, int64_t end) {
        kernels().rows.activate(f, from + begin * item, type, up == nullptr ? nullptr : up + begin * up_item, up_type,
                                end - begin, result + begin * item);
      });
    });
  }

  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>&) override {
    auto plain = [f = f_, s = stream()](const std::vector<mx::array>& in) {
      auto y = plain_activation(f, mx::astype(in[0], mx::float32, s), s);
      if (in.size() > 1) {
        y = mx::multiply(y, mx::astype(in[1], mx::float32, s), s);
      }
      return std::vector<mx::array>{mx::astype(y, in[0].dtype(), s)};
    };
    return gradients(plain, primals, cotangents, argnums);
  }

  const char* name() const override { return "UmlmActivate"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return f_ == static_cast<const Activate&>(other).f_;
  }

 private:
  Activation f_;
};

mx::array activate(const mx::array& gate, const std::optional<mx::array>& up, const std::string& name,
                   mx::StreamOrDevice s) {
  type_of(gate.dtype());
  std::vector<mx::array> inputs = {gate};
  if (up) {
    type_of(up->dtype());
    if (up->shape() != gate.shape()) {
      throw std::invalid_argument("gated_activation: gate and up must have the same shape");
    }
    inputs.push_back(*up);
  }
  auto primitive = std::make_shared<Activate>(mx::to_stream(s), activation_of(name));
  return mx::array(gate.shape(), gate.dtype(), primitive, inputs);
}

}  // namespace

void bind_rows(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("rms_norm", &rms_norm, "x"_a, "weight"_a.none(), "eps"_a, "offset"_a = 0.0f, nanobind::kw_only(),
        "stream"_a = nanobind::none());
  m.def("softmax", &softmax, "x"_a, "scale"_a, nanobind::kw_only(), "stream"_a = nanobind::none());
  m.def("activate", &activate, "gate"_a, "up"_a.none(), "name"_a, nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
