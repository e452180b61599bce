#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstring>
#include <stdexcept>

#include "core/threads.h"
#include "primitives/bind.h"
#include "primitives/quantized.h"

namespace umlm {
namespace {

// x W^T, or x W where transposed is false.
class QuantizedMatmul : public CpuPrimitive {
 public:
  QuantizedMatmul(mx::Stream stream, Coding coding, int64_t columns, bool transposed)
      : CpuPrimitive(stream), coding_(coding), columns_(columns), transposed_(transposed) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>& outputs) override;
  const char* name() const override { return "UmlmQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const QuantizedMatmul&>(other);
    return coding_ == same.coding_ && columns_ == same.columns_ && transposed_ == same.transposed_ &&
           precision_ == same.precision_;
  }

 private:
  Coding coding_;
  int64_t columns_;
  bool transposed_;
};

// Results in float32: out itself, or scratch that is narrowed to it.
struct Results {
  void* out;
  Type type;
  float* wide;

  void store(int64_t rows, int64_t stride, int64_t begin, int64_t end) const {
    if (type == Type::f32) return;
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = m * stride + begin;
      kernels().rows.narrow(wide + at, type, end - begin, static_cast<uint16_t*>(out) + at);
    }
  }
};

void multiply(const QuantizedMatrix& w, const void* x, Type type, int digits, int64_t rows, const Results& results) {
  const QuantizedKernels& k = kernels().quantized;
  Scratch scratch(rows * k.prepared_bytes(w));
  const Operand operand = k.operand(w, x, type, digits, rows, scratch.data());
  auto prepare = [&](int64_t begin, int64_t end) { k.prepare(w, operand, begin, end); };
  if (rows > 8) {
    parallel_for(rows, 4, prepare);
  } else {
    prepare(0, rows);
  }
  parallel_for(w.rows, rows > 16 ? 32 : 16, [&](int64_t begin, int64_t end) {
    k.quantized_matmul(w, operand, results.wide, w.rows, begin, end);
    results.store(rows, w.rows, begin, end);
  });
}

void multiply_transposed(const QuantizedMatrix& w, const void* x, Type type, int64_t rows, const Results& results) {
  Scratch scratch(type == Type::f32 ? 0 : rows * w.rows * sizeof(float));
  const auto* values = static_cast<const float*>(x);
  if (type != Type::f32) {
    auto* wide = reinterpret_cast<float*>(scratch.data());
    kernels().rows.widen(x, type, rows * w.rows, wide);
    values = wide;
  }
  constexpr int64_t kPiece = 256;  // columns; blocks and groups are never cut
  parallel_for((w.columns + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPiece, last = std::min(end * kPiece, w.columns);
    kernels().quantized.quantized_matmul_t(w, values, rows, results.wide, first, last);
    results.store(rows, w.columns, first, last);
  });
}

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(result_memory(out.nbytes()));
  if (out.size() == 0) return;
  const Type type = type_of(out.dtype());
  const StoredMatrix stored(inputs, 1, coding_, columns_);
  auto* result = out.data<uint8_t>();
  mx::cpu::get_command_encoder(stream()).dispatch(
      [stored, type, result, x = RowMajor(inputs[0]), count = out.size(), transposed = transposed_,
       digits = num_digits(type, precision_)]() {
        const QuantizedMatrix w = stored.matrix();
        const int64_t rows = static_cast<int64_t>(count) / (transposed ? w.rows : w.columns);
        Scratch wide(type == Type::f32 ? 0 : count * sizeof(float));
        const Results results{result, type, reinterpret_cast<float*>(type == Type::f32 ? result : wide.data())};
        if (transposed) {
          multiply(w, x.data(), type, digits, rows, results);
        } else {
          multiply_transposed(w, x.data(), type, rows, results);
        }
      });
}

mx::array product(const mx::array& x, std::vector<mx::array> weights, const Coding& coding, int64_t columns,
                  bool transposed, mx::Stream stream) {
  auto shape = x.shape();
  const int64_t rows = weights[0].shape(0);
  if (shape.empty() || shape.back() != (transposed ? columns : rows)) {
    throw std::invalid_argument("quantized_matmul: x must have rows of " + std::to_string(transposed ? columns : rows) +
                                " values");
  }
  type_of(x.dtype());
  shape.back() = static_cast<int>(transposed ? rows : columns);
  weights.insert(weights.begin(), x);
  auto primitive = std::make_shared<QuantizedMatmul>(stream, coding, columns, transposed);
  return mx::array(shape, x.dtype(), primitive, std::move(weights));
}

std::vector<mx::array> QuantizedMatmul::vjp(const std::vector<mx::array>& primals,
                                            const std::vector<mx::array>& cotangents, const std::vector<int>& argnums,
                                            const std::vector<mx::array>&) {
  for (int number : argnums) {
    if (number != 0) throw std::invalid_argument("quantized_matmul has no gradient with respect to quantized weights");
  }
  std::vector<mx::array> weights(primals.begin() + 1, primals.end());
  return {product(cotangents[0], weights, coding_, columns_, !transposed_, stream())};
}

mx::array quantized_matmul(const mx::array& x, const mx::array& weight, const std::optional<mx::array>& scales,
                           const std::optional<mx::array>& biases, const std::string& layout, int group_size,
                           int64_t columns, bool transpose, mx::StreamOrDevice s) {
  return product(x, stored_arrays(weight, scales, biases), coding_of(layout, group_size), columns, transpose,
                 mx::to_stream(s));
}

}  // namespace

void bind_quantized(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("quantized_matmul", &quantized_matmul, "x"_a, "weight"_a, "scales"_a.none(), "biases"_a.none(), "layout"_a,
        "group_size"_a, "columns"_a, "transpose"_a = true, nanobind::kw_only(), "stream"_a = nanobind::none(),
        "x W^T, or x W without transpose, for x of [..., columns] (or rows) and W [rows, columns] in a layout of MLX "
        "(affine2 .. affine8, mxfp4, mxfp8, nvfp4) or ggml (Q4_0 .. Q6_K, IQ4_NL, IQ4_XS, MXFP4); in x's dtype.");
}

}  // namespace umlm
