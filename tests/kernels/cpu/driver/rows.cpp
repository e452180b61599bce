// Norms, softmax and activations of rows, and the sampler, on exactly sized rows of every dtype.
#include "core/rows.h"

#include "check.h"
#include "core/sampling.h"
#include "parts.h"

namespace {

void one_norm(Random& random) {
  const umlm::RowKernels& k = umlm::kernels().rows;
  const int64_t rows = between(random, 1, 4), columns = between(random, 1, 150);
  Stored x(random, any_type(random), rows * columns), weight(random, any_type(random), columns);
  const bool weighted = between(random, 0, 1) == 1;
  const float offset = between(random, 0, 1);
  auto out = exactly<uint8_t>(rows * columns * size_of(x.type));
  k.rms_norm(x.data.get(), x.type, weighted ? weight.data.get() : nullptr, weight.type, offset, 1e-5f, rows, columns,
             out.get());
  auto found = exactly<float>(rows * columns);
  k.widen(out.get(), x.type, rows * columns, found.get());
  auto wanted = exactly<double>(rows * columns);
  for (int64_t m = 0; m < rows; ++m) {
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += std::pow(double(x.values[m * columns + c]), 2);
    for (int64_t c = 0; c < columns; ++c) {
      const double factor = weighted ? offset + weight.values[c] : 1;
      wanted[m * columns + c] = x.values[m * columns + c] / std::sqrt(squares / columns + 1e-5) * factor;
    }
  }
  check_near(found.get(), wanted.get(), rows * columns, rounding(x.type), "rms_norm");
}

void one_softmax(Random& random) {
  const umlm::RowKernels& k = umlm::kernels().rows;
  const int64_t rows = between(random, 1, 4), columns = between(random, 1, 600);
  const float scale = between(random, 1, 3);
  Stored x(random, any_type(random), rows * columns);
  auto out = exactly<uint8_t>(rows * columns * size_of(x.type));
  k.softmax(x.data.get(), x.type, scale, rows, columns, out.get());
  auto found = exactly<float>(rows * columns);
  k.widen(out.get(), x.type, rows * columns, found.get());
  auto wanted = exactly<double>(rows * columns);
  for (int64_t m = 0; m < rows; ++m) {
    double total = 0;
    for (int64_t c = 0; c < columns; ++c) total += std::exp(double(scale) * x.values[m * columns + c]);
    for (int64_t c = 0; c < columns; ++c) {
      wanted[m * columns + c] = std::exp(double(scale) * x.values[m * columns + c]) / total;
    }
  }
  check_near(found.get(), wanted.get(), rows * columns, rounding(x.type), "softmax");
}

double activated(umlm::Activation f, double x) {
  switch (f) {
    case umlm::Activation::silu: return x / (1 + std::exp(-x));
    case umlm::Activation::gelu: return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    case umlm::Activation::gelu_tanh: return x * 0.5 * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case umlm::Activation::relu: return std::max(x, 0.0);
    case umlm::Activation::relu2: return x > 0 ? x * x : 0;
  }
  return NAN;
}

void one_activation(Random& random) {
  const umlm::RowKernels& k = umlm::kernels().rows;
  const int64_t count = between(random, 1, 150);
  const auto f = static_cast<umlm::Activation>(between(random, 0, 4));
  Stored gate(random, any_type(random), count), up(random, any_type(random), count);
  const bool gated = between(random, 0, 1) == 1;
  auto out = exactly<uint8_t>(count * size_of(gate.type));
  k.activate(f, gate.data.get(), gate.type, gated ? up.data.get() : nullptr, up.type, count, out.get());
  auto found = exactly<float>(count);
  k.widen(out.get(), gate.type, count, found.get());
  auto wanted = exactly<double>(count);
  for (int64_t i = 0; i < count; ++i) wanted[i] = activated(f, gate.values[i]) * (gated ? up.values[i] : 1);
  check_near(found.get(), wanted.get(), count, rounding(gate.type), "activate");
}

void one_draw(Random& random) {
  const int64_t count = between(random, 1, 700);
  auto logits = normal(random, count);
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i) best = logits[i] > logits[best] ? i : best;
  umlm::Draw draw{0, between(random, 0, count), 0.9f, 0.01f, float(between(random, 0, 999)) / 1000};
  const umlm::SamplingKernels& k = umlm::kernels().sampling;
  const umlm::Choice greedy = umlm::choose_token(k, logits.get(), count, draw);
  CHECK(greedy.usable && greedy.token == best, "%u of %ld, not %ld", greedy.token, long(count), long(best));
  draw.temperature = 0.7f;
  const umlm::Choice drawn = umlm::choose_token(k, logits.get(), count, draw);
  CHECK(drawn.usable && drawn.token < count, "%u of %ld", drawn.token, long(count));
  logits[between(random, 0, count - 1)] = NAN;
  CHECK(!umlm::choose_token(k, logits.get(), count, draw).usable, "NaN among %ld", long(count));
}

}  // namespace

void check_rows() {
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    one_norm(random);
    one_softmax(random);
    one_activation(random);
  }
}

void check_sampling() {
  Random random(4);
  for (int i = 0; i < 100; ++i) {
    one_draw(random);
  }
}
