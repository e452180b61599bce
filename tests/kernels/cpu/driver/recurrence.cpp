// Recurrent layers, a random packed row at a time, against their formulas in double; arrays of exactly their size.
#include "core/recurrence.h"

#include <vector>

#include "check.h"
#include "core/threads.h"
#include "parts.h"

namespace {

constexpr int kRequests = 3;

// Where requests start; a request may have no tokens.
std::vector<int64_t> any_starts(Random& random) {
  std::vector<int64_t> starts = {0};
  for (int r = 0; r < kRequests; ++r) starts.push_back(starts.back() + between(random, 0, 5));
  return starts;
}

// Tokens whose values lie together, with a gap between them that no kernel may read as theirs.
struct Tokens {
  int64_t width, stride;
  Stored stored;

  Tokens(Random& random, int64_t tokens, int64_t width)
      : width(width), stride(width + between(random, 0, 3)),
        stored(random, any_type(random), tokens == 0 ? 0 : (tokens - 1) * stride + width) {}

  umlm::TokenRows rows() const { return {stored.data.get(), stored.type, stride}; }
  double at(int64_t token, int64_t i) const { return stored.values[token * stride + i]; }
};

void check_outputs(const uint8_t* out, umlm::Type type, const std::vector<double>& wanted, const char* what) {
  auto found = exactly<float>(wanted.size());
  umlm::kernels().rows.widen(out, type, wanted.size(), found.get());
  check_near(found.get(), wanted.data(), wanted.size(), rounding(type), what);
}

// Outputs; states become those after the last tokens.
std::vector<double> delta_outputs(const umlm::GatedDelta& a, const Tokens& q, const Tokens& k, const Tokens& v,
                                  const std::vector<int64_t>& starts, std::vector<double>& states) {
  std::vector<double> out(starts.back() * a.v_heads * a.v_dim);
  auto length = [&](const Tokens& x, int64_t t, int64_t head) {
    double squares = a.eps;
    for (int64_t i = 0; i < a.k_dim; ++i) squares += x.at(t, head * a.k_dim + i) * x.at(t, head * a.k_dim + i);
    return a.eps < 0 ? 1 : std::sqrt(squares);
  };
  for (int r = 0; r < kRequests; ++r) {
    for (int64_t t = starts[r]; t < starts[r + 1]; ++t) {
      for (int64_t h = 0; h < a.v_heads; ++h) {
        const int64_t kh = h / (a.v_heads / a.k_heads), place = t * a.v_heads + h;
        double* state = states.data() + (r * a.v_heads + h) * a.k_dim * a.v_dim;
        const double k_length = length(k, t, kh), q_length = length(q, t, kh);
        for (int64_t c = 0; c < a.v_dim; ++c) {
          double recalled = 0;
          for (int64_t i = 0; i < a.k_dim; ++i) {
            state[i * a.v_dim + c] *= std::exp(double(a.log_decay[a.per_channel ? place * a.k_dim + i : place]));
            recalled += k.at(t, kh * a.k_dim + i) / k_length * state[i * a.v_dim + c];
          }
          const double change = a.beta[place] * (v.at(t, h * a.v_dim + c) - recalled);
          for (int64_t i = 0; i < a.k_dim; ++i) {
            state[i * a.v_dim + c] += k.at(t, kh * a.k_dim + i) / k_length * change;
            out[place * a.v_dim + c] += q.at(t, kh * a.k_dim + i) * a.scale / q_length * state[i * a.v_dim + c];
          }
        }
      }
    }
  }
  return out;
}

void one_delta(Random& random) {
  const umlm::RecurrenceKernels& kernels = umlm::kernels().recurrence;
  const auto starts = any_starts(random);
  const int64_t tokens = starts.back();
  umlm::GatedDelta a{};
  a.k_heads = between(random, 1, 2), a.v_heads = a.k_heads * between(random, 1, 2);
  a.k_dim = between(random, 1, 40), a.v_dim = between(random, 1, 150);
  a.per_channel = between(random, 0, 1) == 1;
  a.scale = 0.5f, a.eps = 1e-6f;
  Tokens q(random, tokens, a.k_heads * a.k_dim), k(random, tokens, a.k_heads * a.k_dim);
  Tokens v(random, tokens, a.v_heads * a.v_dim);
  const int64_t decays = tokens * a.v_heads * (a.per_channel ? a.k_dim : 1);
  const int64_t size = kRequests * a.v_heads * a.k_dim * a.v_dim;
  auto decay = normal(random, decays), beta = normal(random, tokens * a.v_heads), states = normal(random, size);
  for (int64_t i = 0; i < decays; ++i) decay[i] = -std::abs(decay[i]);
  for (int64_t i = 0; i < tokens * a.v_heads; ++i) beta[i] = 1 / (1 + std::exp(-beta[i]));
  auto after = exactly<float>(size);
  auto out = exactly<uint8_t>(tokens * a.v_heads * a.v_dim * size_of(v.stored.type));
  a.q = q.rows(), a.k = k.rows(), a.v = v.rows();
  a.log_decay = decay.get(), a.beta = beta.get(), a.states = states.get();
  a.new_states = after.get(), a.out = out.get();
  std::vector<double> last(states.get(), states.get() + size);
  const auto wanted = delta_outputs(a, q, k, v, starts, last);
  const int64_t tiles = (a.v_dim + umlm::kDeltaColumns - 1) / umlm::kDeltaColumns, parts = a.v_heads * tiles;
  umlm::parallel_for(kRequests * parts, 1, [&](int64_t begin, int64_t end) {
    Bytes scratch = aligned(kernels.delta_scratch(a) * sizeof(float));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / parts, part = i % parts;
      kernels.gated_delta(a, r, starts[r], starts[r + 1], part / tiles, part % tiles * umlm::kDeltaColumns,
                          reinterpret_cast<float*>(scratch.get()));
    }
  });
  check_outputs(out.get(), v.stored.type, wanted, "gated_delta");
  check_near(after.get(), last.data(), size, 1e-5, "gated_delta's states");
}

std::vector<double> scan_outputs(const umlm::SelectiveScan& a, const Tokens& x, const std::vector<int64_t>& starts,
                                 std::vector<double>& states) {
  const int64_t rows = a.heads * a.channels;
  std::vector<double> out(starts.back() * rows);
  for (int r = 0; r < kRequests; ++r) {
    for (int64_t t = starts[r]; t < starts[r + 1]; ++t) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t head = row / a.channels, group = head / (a.heads / a.groups);
        const double dt = a.dt[t * a.heads + head];
        double sum = a.skip == nullptr ? 0 : a.skip[head] * x.at(t, row);
        for (int64_t n = 0; n < a.size; ++n) {
          const int64_t place = (t * a.groups + group) * a.padded + n;
          double& state = states[(r * rows + row) * a.size + n];
          state = std::exp(dt * a.a[a.per_place ? head * a.size + n : head]) * state + dt * x.at(t, row) * a.b[place];
          sum += state * a.c[place];
        }
        out[t * rows + row] = sum;
      }
    }
  }
  return out;
}

void one_scan(Random& random) {
  const umlm::RecurrenceKernels& kernels = umlm::kernels().recurrence;
  const auto starts = any_starts(random);
  const int64_t tokens = starts.back();
  umlm::SelectiveScan a{};
  a.groups = between(random, 1, 2), a.heads = a.groups * between(random, 1, 30), a.channels = between(random, 1, 5);
  a.size = between(random, 0, 2) == 0 ? 16 : between(random, 1, 70);
  a.padded = (a.size + umlm::kScanPad - 1) / umlm::kScanPad * umlm::kScanPad;
  a.per_place = between(random, 0, 1) == 1;
  Tokens x(random, tokens, a.heads * a.channels);
  const int64_t places = a.heads * (a.per_place ? a.size : 1), size = kRequests * a.heads * a.channels * a.size;
  auto dt = normal(random, tokens * a.heads), decay = normal(random, places), skip = normal(random, a.heads);
  auto b = normal(random, tokens * a.groups * a.padded), c = normal(random, tokens * a.groups * a.padded);
  for (int64_t i = 0; i < tokens * a.heads; ++i) dt[i] = std::abs(dt[i]);
  for (int64_t i = 0; i < places; ++i) decay[i] = -std::abs(decay[i]);
  for (int64_t i = 0; i < tokens * a.groups * a.padded; ++i) {
    if (i % a.padded >= a.size) b[i] = c[i] = 0;
  }
  auto states = normal(random, size), after = exactly<float>(size);
  auto out = exactly<uint8_t>(tokens * a.heads * a.channels * size_of(x.stored.type));
  a.x = x.rows(), a.dt = dt.get(), a.a = decay.get(), a.b = b.get(), a.c = c.get();
  a.skip = between(random, 0, 1) == 1 ? skip.get() : nullptr;
  a.states = states.get(), a.new_states = after.get(), a.out = out.get();
  std::vector<double> last(states.get(), states.get() + size);
  const auto wanted = scan_outputs(a, x, starts, last);
  const int64_t blocks = (a.heads * a.channels + umlm::kScanRows - 1) / umlm::kScanRows;
  umlm::parallel_for(kRequests * blocks, 1, [&](int64_t begin, int64_t end) {
    Bytes scratch = aligned(kernels.scan_scratch(a) * sizeof(float));
    for (int64_t i = begin; i < end; ++i) {
      kernels.selective_scan(a, i / blocks, starts[i / blocks], starts[i / blocks + 1], i % blocks * umlm::kScanRows,
                             reinterpret_cast<float*>(scratch.get()));
    }
  });
  check_outputs(out.get(), x.stored.type, wanted, "selective_scan");
  check_near(after.get(), last.data(), size, 1e-5, "selective_scan's states");
}

void one_conv(Random& random) {
  const auto starts = any_starts(random);
  const int64_t tokens = starts.back();
  umlm::ShortConv a{};
  a.channels = between(random, 1, 150), a.taps = between(random, 2, umlm::kMostTaps);
  const int64_t kept = a.taps - 1, size = kRequests * kept * a.channels;
  Tokens x(random, tokens, a.channels);
  Stored weight(random, any_type(random), a.channels * a.taps), bias(random, any_type(random), a.channels);
  Stored states(random, any_type(random), size);
  // inputs move into the states: these have to hold their values
  if (states.type != umlm::Type::f32) states = Stored(random, x.stored.type, size);
  auto after = exactly<uint8_t>(size * size_of(states.type));
  auto out = exactly<uint8_t>(tokens * a.channels * size_of(x.stored.type));
  a.x = x.rows(), a.weight = weight.data.get(), a.weight_type = weight.type;
  a.bias = between(random, 0, 1) == 1 ? bias.data.get() : nullptr, a.bias_type = bias.type;
  a.states = states.data.get(), a.state_type = states.type, a.new_states = after.get(), a.out = out.get();
  std::vector<double> wanted(tokens * a.channels), last(size);
  for (int r = 0; r < kRequests; ++r) {
    // the input of token t, or of one before the request's first
    auto input = [&](int64_t t, int64_t c) -> double {
      return t >= starts[r] ? x.at(t, c) : states.values[(r * kept + t - starts[r] + kept) * a.channels + c];
    };
    for (int64_t c = 0; c < a.channels; ++c) {
      for (int64_t t = starts[r]; t < starts[r + 1]; ++t) {
        double sum = a.bias == nullptr ? 0 : bias.values[c];
        for (int64_t j = 0; j < a.taps; ++j) sum += weight.values[c * a.taps + j] * input(t - kept + j, c);
        wanted[t * a.channels + c] = sum;
      }
      for (int64_t j = 0; j < kept; ++j) last[(r * kept + j) * a.channels + c] = input(starts[r + 1] - kept + j, c);
    }
  }
  const int64_t blocks = (a.channels + umlm::kConvChannels - 1) / umlm::kConvChannels;
  umlm::parallel_for(kRequests * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      umlm::kernels().recurrence.short_conv(a, i / blocks, starts[i / blocks], starts[i / blocks + 1],
                                            i % blocks * umlm::kConvChannels);
    }
  });
  check_outputs(out.get(), x.stored.type, wanted, "short_conv");
  check_outputs(after.get(), states.type, last, "short_conv's states");
}

}  // namespace

void check_recurrence() {
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    one_delta(random);
    one_scan(random);
    one_conv(random);
  }
}
