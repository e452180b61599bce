// Products with quantized matrices of every layout against sums in double over the rows that the unit dequantizes.
#include "core/quantized.h"

#include <cstring>

#include "check.h"
#include "core/threads.h"
#include "parts.h"

namespace {

using umlm::Layout;
using umlm::Type;

// bytes of a block of values; at which bytes it has scales in f16 (-1: none)
struct Form {
  Layout layout;
  int values, bytes;
  int halves[2] = {-1, -1};
};

constexpr Form kForms[] = {
    {Layout::affine2, 32, 8},
    {Layout::affine3, 32, 12},
    {Layout::affine4, 32, 16},
    {Layout::affine5, 32, 20},
    {Layout::affine6, 32, 24},
    {Layout::affine8, 32, 32},
    {Layout::mxfp4, 32, 16},
    {Layout::mxfp8, 32, 32},
    {Layout::nvfp4, 16, 8},
    {Layout::ggml_q4_0, 32, 18, {0, -1}},
    {Layout::ggml_q4_1, 32, 20, {0, 2}},
    {Layout::ggml_q5_0, 32, 22, {0, -1}},
    {Layout::ggml_q5_1, 32, 24, {0, 2}},
    {Layout::ggml_q8_0, 32, 34, {0, -1}},
    {Layout::ggml_iq4_nl, 32, 18, {0, -1}},
    {Layout::ggml_mxfp4, 32, 17},
    {Layout::ggml_q2_k, 256, 84, {80, 82}},
    {Layout::ggml_q3_k, 256, 110, {108, -1}},
    {Layout::ggml_q4_k, 256, 144, {0, 2}},
    {Layout::ggml_q5_k, 256, 176, {0, 2}},
    {Layout::ggml_q6_k, 256, 210, {208, -1}},
    {Layout::ggml_iq4_xs, 256, 136, {0, -1}},
};

std::unique_ptr<uint8_t[]> noise(Random& random, int64_t count, int least = 0, int most = 255) {
  auto bytes = exactly<uint8_t>(count);
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(between(random, least, most));
  return bytes;
}

// A matrix of random codes and finite scales, with all it points to.
struct Matrix {
  umlm::QuantizedMatrix view{};
  std::unique_ptr<uint8_t[]> weight, byte_scales;
  std::unique_ptr<Stored> scales, biases;

  Matrix(Random& random, const Form& form) {
    const bool affine = form.layout <= Layout::affine8, own_scales = form.layout >= Layout::ggml_q4_0;
    view.layout = form.layout;
    view.group = affine ? 32 << between(random, 0, 2) : form.values;
    view.rows = between(random, 1, 70);
    view.columns = std::max(view.group, form.values) * between(random, 1, form.values == 256 ? 3 : 9);
    view.row_bytes = view.columns / form.values * form.bytes;
    weight = noise(random, view.rows * view.row_bytes);
    view.weight = weight.get();
    const int64_t groups = view.rows * (view.columns / view.group);
    if (affine) {
      view.scale_type = any_type(random);
      scales = std::make_unique<Stored>(random, view.scale_type, groups);
      biases = std::make_unique<Stored>(random, view.scale_type, groups);
      view.scales = scales->data.get();
      view.biases = biases->data.get();
    } else if (!own_scales) {
      byte_scales = noise(random, groups, 100, 120);  // E8M0 and E4M3 without NaN
      view.scales = byte_scales.get();
      finite_codes(form);
    } else {
      finite_scales(random, form);
    }
    if (form.values == 256) view.group = form.layout == Layout::ggml_q2_k || form.layout == Layout::ggml_q3_k ||
                                                 form.layout == Layout::ggml_q6_k ? 16 : 32;
  }

  void finite_codes(const Form& form) {
    if (form.layout != Layout::mxfp8) return;
    for (int64_t i = 0; i < view.rows * view.row_bytes; ++i) {
      if ((weight[i] & 0x7f) == 0x7f) weight[i] ^= 1;
    }
  }

  void finite_scales(Random& random, const Form& form) {
    for (int64_t at = 0; at < view.rows * view.row_bytes; at += form.bytes) {
      for (int half : form.halves) {
        if (half >= 0) weight[at + half + 1] = static_cast<uint8_t>(between(random, 0x20, 0x38));
      }
      if (form.layout == Layout::ggml_mxfp4) weight[at] = static_cast<uint8_t>(between(random, 120, 130));
    }
  }
};

void check_product(const Matrix& matrix, const float* rows, Random& random, const char* what) {
  const umlm::QuantizedKernels& k = umlm::kernels().quantized;
  const umlm::QuantizedMatrix& w = matrix.view;
  const int64_t count = between(random, 1, 20), grain = between(random, 1, 40);
  Stored x(random, any_type(random), count * w.columns);
  Bytes scratch = aligned(count * k.prepared_bytes(w));
  const int digits = static_cast<int>(between(random, 1, 3));  // bytes that activations may be rounded to
  const umlm::Operand operand = k.operand(w, x.data.get(), x.type, digits, count, scratch.get());
  umlm::parallel_for(count, 4, [&](int64_t begin, int64_t end) { k.prepare(w, operand, begin, end); });
  auto found = exactly<float>(count * w.rows);
  umlm::parallel_for(w.rows, grain, [&](int64_t begin, int64_t end) {
    k.quantized_matmul(w, operand, found.get(), w.rows, begin, end);
  });
  auto wanted = exactly<double>(count * w.rows);
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t n = 0; n < w.rows; ++n) {
      double sum = 0;
      for (int64_t c = 0; c < w.columns; ++c) sum += double(x.values[m * w.columns + c]) * rows[n * w.columns + c];
      wanted[m * w.rows + n] = sum;
    }
  }
  constexpr double kBounds[] = {3e-2, 2e-4, 2e-5};
  check_near(found.get(), wanted.get(), count * w.rows, kBounds[digits - 1], what);
}

void check_transposed(const Matrix& matrix, const float* rows, Random& random, const char* what) {
  const umlm::QuantizedMatrix& w = matrix.view;
  const int64_t count = between(random, 1, 5);
  auto x = normal(random, count * w.rows);
  auto found = exactly<float>(count * w.columns);
  umlm::parallel_for((w.columns + 255) / 256, 1, [&](int64_t begin, int64_t end) {
    umlm::kernels().quantized.quantized_matmul_t(w, x.get(), count, found.get(), begin * 256,
                                                 std::min(end * 256, w.columns));
  });
  auto wanted = exactly<double>(count * w.columns);
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t c = 0; c < w.columns; ++c) {
      double sum = 0;
      for (int64_t n = 0; n < w.rows; ++n) sum += double(x[m * w.rows + n]) * rows[n * w.columns + c];
      wanted[m * w.columns + c] = sum;
    }
  }
  check_near(found.get(), wanted.get(), count * w.columns, 2e-5, what);
}

}  // namespace

void check_quantized() {
  Random random(1);
  for (const Form& form : kForms) {
    char what[64];
    std::snprintf(what, sizeof(what), "%s, layout %d", umlm::kernels().name, int(form.layout));
    for (int i = 0; i < 6; ++i) {
      Matrix matrix(random, form);
      const umlm::QuantizedMatrix& w = matrix.view;
      auto rows = exactly<float>(w.rows * w.columns);
      for (int64_t n = 0; n < w.rows; ++n) {
        auto row = exactly<float>(w.columns);
        umlm::kernels().quantized.dequantize_row(w, n, row.get());
        std::memcpy(rows.get() + n * w.columns, row.get(), w.columns * sizeof(float));
      }
      check_product(matrix, rows.get(), random, what);
      check_transposed(matrix, rows.get(), random, what);
    }
  }
}
