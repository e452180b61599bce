// Products with dense matrices, and their gradients.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <stdexcept>

#include "core/threads.h"
#include "primitives/bind.h"
#include "primitives/row_major.h"

namespace umlm {
namespace {

// Multiply-adds that are worth a thread's wake-up.
constexpr int64_t kWorth = 1 << 19;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void run(DenseProduct product) {
  const Kernels& k = kernels();
  const Type wanted = k.dense.operand_type(product.x_type, product.weight_type);
  Scratch wide(product.x_type == wanted ? 0 : product.rows * product.columns * sizeof(float));
  if (product.x_type != wanted) {
    auto* values = reinterpret_cast<float*>(wide.data());
    const auto* from = static_cast<const uint16_t*>(product.x);
    parallel_for(product.rows * product.columns, 1 << 16, [&](int64_t begin, int64_t end) {
      k.rows.widen(from + begin, product.x_type, end - begin, values + begin);
    });
    product.x = values;
    product.x_type = wanted;
  }
  const int64_t row_blocks = ceil_div(product.rows, kBlockRows);
  const int64_t work = kBlockOutputs * product.columns * std::min(product.rows, kBlockRows);
  parallel_for(row_blocks * ceil_div(product.outputs, kBlockOutputs), kWorth / (work + 1) + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   k.dense.block(product, i % row_blocks * kBlockRows, i / row_blocks * kBlockOutputs);
                 }
               });
}

mx::array matmul(const mx::array& x, const mx::array& weight, const std::optional<mx::array>& bias,
                 mx::StreamOrDevice s);

class Matmul : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array &x = inputs[0], &weight = inputs[1];
    const bool biased = inputs.size() > 2;
    RowMajor values(x), weights(weight), biases(biased ? inputs[2] : x);
    DenseProduct product{};
    product.outputs = weight.shape(0);
    product.columns = weight.shape(1);
    product.rows = product.outputs == 0 ? 0 : out.size() / product.outputs;
    product.x_type = type_of(x.dtype());
    product.weight_type = type_of(weight.dtype());
    product.bias_type = biased ? type_of(inputs[2].dtype()) : Type::f32;
    product.out_type = type_of(out.dtype());
    out.set_data(result_memory(out.nbytes()));
    product.out = out.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch([=]() mutable {
      product.x = values.data();
      product.weight = weights.data();
      product.bias = biased ? biases.data() : nullptr;
      run(product);
    });
  }

  // y = x W^T + b: x gets c W, W gets c^T x, b gets the sum of c; the same primitive on transposed operands.
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>&) override {
    const mx::array &x = primals[0], &weight = primals[1], &cotangent = cotangents[0];
    auto flat = [&](const mx::array& a) { return mx::flatten(a, 0, -2, stream()); };
    auto turned = [&](const mx::array& a) { return mx::contiguous(mx::transpose(a, stream()), false, stream()); };
    const mx::array c = x.ndim() == 1 ? mx::expand_dims(cotangent, 0, stream()) : flat(cotangent);
    const mx::array rows = x.ndim() == 1 ? mx::expand_dims(x, 0, stream()) : flat(x);
    std::vector<mx::array> found;
    for (int number : argnums) {
      if (number == 0) {
        found.push_back(matmul(cotangent, turned(weight), std::nullopt, stream()));
      } else if (number == 1) {
        auto gradient = matmul(turned(c), turned(rows), std::nullopt, stream());
        found.push_back(mx::astype(gradient, weight.dtype(), stream()));
      } else {
        found.push_back(mx::astype(mx::sum(mx::astype(c, mx::float32, stream()), 0, false, stream()),
                                   primals[2].dtype(), stream()));
      }
    }
    return found;
  }

  const char* name() const override { return "UmlmMatmul"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
};

mx::array matmul(const mx::array& x, const mx::array& weight, const std::optional<mx::array>& bias,
                 mx::StreamOrDevice s) {
  if (weight.ndim() != 2 || x.ndim() == 0 || x.shape(-1) != weight.shape(1)) {
    throw std::invalid_argument("matmul: x must be [..., columns] for a weight [rows, columns]");
  }
  if (bias && (bias->ndim() != 1 || bias->shape(0) != weight.shape(0))) {
    throw std::invalid_argument("matmul: the bias must be [rows] for a weight [rows, columns]");
  }
  std::vector<mx::array> inputs = {x, weight};
  if (bias) {
    inputs.push_back(*bias);
  }
  for (const mx::array& input : inputs) {
    type_of(input.dtype());
  }
  auto shape = x.shape();
  shape.back() = weight.shape(0);
  return mx::array(shape, x.dtype(), std::make_shared<Matmul>(mx::to_stream(s)), inputs);
}

}  // namespace

void bind_dense(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("matmul", &matmul, "x"_a, "weight"_a, "bias"_a.none(), nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
