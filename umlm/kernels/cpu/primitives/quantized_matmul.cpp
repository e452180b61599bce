#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "core/threads.h"
#include "mlx/primitives.h"
#include "primitives/arrays.h"
#include "primitives/bind.h"

namespace umlm {
namespace {

Layout layout_of(const std::string& mode, int bits) {
  if (mode == "mxfp4") return Layout::mxfp4;
  if (mode == "mxfp8") return Layout::mxfp8;
  if (mode == "nvfp4") return Layout::nvfp4;
  switch (bits) {
    case 2: return Layout::affine2;
    case 3: return Layout::affine3;
    case 4: return Layout::affine4;
    case 5: return Layout::affine5;
    case 6: return Layout::affine6;
    case 8: return Layout::affine8;
  }
  throw std::invalid_argument("quantized_matmul: no kernel for " + std::to_string(bits) + " bits");
}

class QuantizedMatmul : public mx::UnaryPrimitive {
 public:
  QuantizedMatmul(mx::Stream stream, Layout layout, int group) : UnaryPrimitive(stream), layout_(layout), group_(group) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error("quantized_matmul of umlm's CPU kernels was asked to run on a GPU");
  }
  const char* name() const override { return "UmlmQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const QuantizedMatmul&>(other);
    return layout_ == same.layout_ && group_ == same.group_;
  }

 private:
  Layout layout_;
  int group_;
};

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  const mx::array &x = inputs[0], &weight = inputs[1], &scales = inputs[2];
  out.set_data(mx::allocator::malloc(out.nbytes()));
  QuantizedMatrix w{};
  w.layout = layout_;
  w.group = group_;
  w.rows = weight.shape(0);
  w.columns = x.shape(-1);
  w.row_bytes = weight.shape(1) * int64_t(sizeof(uint32_t));
  w.weight = reinterpret_cast<const uint8_t*>(weight.data<uint32_t>());
  w.scales = reinterpret_cast<const uint8_t*>(scales.data<uint8_t>());
  if (inputs.size() > 3) {
    w.scale_type = type_of(scales.dtype());
    w.biases = reinterpret_cast<const uint8_t*>(inputs[3].data<uint8_t>());
  }
  auto& encoder = mx::cpu::get_command_encoder(stream());
  int64_t rows = x.size() / w.columns;
  const auto* values = x.data<float>();
  auto* result = out.data<float>();
  encoder.dispatch([=]() {
    const QuantizedKernels& k = kernels().quantized;
    Scratch scratch(rows * k.prepared_bytes(w));
    Operand operand = k.operand(w, values, rows, false, scratch.data());
    if (rows > 8) {
      parallel_for(rows, 4, [&](int64_t begin, int64_t end) { k.prepare(w, operand, begin, end); });
    } else {
      k.prepare(w, operand, 0, rows);
    }
    parallel_for(w.rows, 16, [&](int64_t begin, int64_t end) {
      k.quantized_matmul(w, operand, result, w.rows, begin, end);
    });
  });
}

// y = x W^T. x [..., columns], W [rows, columns] as MLX's quantize lays it out -> [..., rows] in x's dtype.
mx::array quantized_matmul(const mx::array& x, const mx::array& weight, const mx::array& scales,
                           const std::optional<mx::array>& biases, int group_size, int bits, const std::string& mode,
                           mx::StreamOrDevice s) {
  mx::Stream stream = mx::to_stream(s);
  auto shape = x.shape();
  shape.back() = weight.shape(0);
  auto wide = mx::contiguous(mx::astype(x, mx::float32, s), false, s);
  std::vector<mx::array> inputs = {wide, mx::contiguous(weight, false, s), mx::contiguous(scales, false, s)};
  if (biases) {
    inputs.push_back(mx::contiguous(*biases, false, s));
  }
  auto primitive = std::make_shared<QuantizedMatmul>(stream, layout_of(mode, bits), group_size);
  return mx::astype(mx::array(shape, mx::float32, primitive, inputs), x.dtype(), s);
}

}  // namespace

void bind_quantized(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("quantized_matmul", &quantized_matmul, "x"_a, "weight"_a, "scales"_a, "biases"_a.none(), "group_size"_a,
        "bits"_a, "mode"_a, nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
