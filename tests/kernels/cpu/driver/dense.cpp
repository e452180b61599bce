// Products with dense matrices of all dtypes against sums in double.
#include "core/dense.h"

#include "check.h"
#include "core/threads.h"
#include "parts.h"

namespace {

void one_product(Random& random) {
  const umlm::Kernels& k = umlm::kernels();
  umlm::DenseProduct product{};
  product.rows = between(random, 1, 60);
  product.outputs = between(random, 1, 80);
  product.columns = between(random, 1, 200);
  Stored weight(random, any_type(random), product.outputs * product.columns);
  const umlm::Type x_type = k.dense.operand_type(any_type(random), weight.type);
  Stored x(random, x_type, product.rows * product.columns), bias(random, any_type(random), product.outputs);
  const umlm::Type out_type = any_type(random);
  auto out = exactly<uint8_t>(product.rows * product.outputs * size_of(out_type));
  const bool biased = between(random, 0, 1) == 1;
  product.x = x.data.get(), product.x_type = x.type;
  product.weight = weight.data.get(), product.weight_type = weight.type;
  product.bias = biased ? bias.data.get() : nullptr, product.bias_type = bias.type;
  product.out = out.get(), product.out_type = out_type;

  const int64_t row_blocks = (product.rows + umlm::kBlockRows - 1) / umlm::kBlockRows;
  const int64_t output_blocks = (product.outputs + umlm::kBlockOutputs - 1) / umlm::kBlockOutputs;
  umlm::parallel_for(row_blocks * output_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.dense.block(product, i % row_blocks * umlm::kBlockRows, i / row_blocks * umlm::kBlockOutputs);
    }
  });

  auto found = exactly<float>(product.rows * product.outputs);
  k.rows.widen(out.get(), out_type, product.rows * product.outputs, found.get());
  auto wanted = exactly<double>(product.rows * product.outputs);
  for (int64_t m = 0; m < product.rows; ++m) {
    for (int64_t n = 0; n < product.outputs; ++n) {
      double sum = biased ? bias.values[n] : 0;
      for (int64_t c = 0; c < product.columns; ++c) {
        sum += double(x.values[m * product.columns + c]) * weight.values[n * product.columns + c];
      }
      wanted[m * product.outputs + n] = sum;
    }
  }
  check_near(found.get(), wanted.get(), product.rows * product.outputs, rounding(out_type), k.name);
}

}  // namespace

void check_dense() {
  Random random(2);
  for (int i = 0; i < 60; ++i) {
    one_product(random);
  }
}
