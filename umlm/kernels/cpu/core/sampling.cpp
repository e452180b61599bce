#include "core/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace umlm {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Candidates looked at first for the share top_p; each time they do not hold it, so many times more.
constexpr int64_t kFirstWidth = 64, kWider = 4;

struct Row {
  const SamplingKernels& kernels;
  const float* logits;
  int64_t count;
  float temperature;
  float best = kNever;
  std::vector<float> maxima;
};

int64_t blocks_of(int64_t count) { return (count + kSampleBlock - 1) / kSampleBlock; }

// The first token with the largest logit.
int64_t likeliest(const Row& row) {
  const int64_t block = std::find(row.maxima.begin(), row.maxima.end(), row.best) - row.maxima.begin();
  return std::find(row.logits + block * kSampleBlock, row.logits + row.count, row.best) - row.logits;
}

// The first place where the cumulative sum exceeds target; the last with any weight where rounding hides it.
int64_t invert(const float* weights, int64_t count, double before, double target) {
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    before += weights[i];
    if (weights[i] > 0) {
      last = i;
      if (before > target) break;
    }
  }
  return last;
}

double sum(const std::vector<float>& values) {
  double total = 0;
  for (float value : values) total += value;
  return total;
}

std::vector<float> block_weights(const Row& row, float floor) {
  std::vector<float> sums(row.maxima.size());
  row.kernels.block_weights(row.logits, row.count, row.best, row.temperature, floor, sums.data());
  return sums;
}

int64_t draw_from_all(const Row& row, float floor, float uniform) {
  const std::vector<float> sums = block_weights(row, floor);
  const double target = uniform * sum(sums);
  const int64_t block = invert(sums.data(), sums.size(), 0, target);
  double before = 0;
  for (int64_t i = 0; i < block; ++i) before += sums[i];
  const int64_t first = block * kSampleBlock, size = std::min(kSampleBlock, row.count - first);
  float weights[kSampleBlock];
  row.kernels.weights(row.logits + first, size, row.best, row.temperature, floor, weights);
  return first + invert(weights, size, before, target);
}

// At least `width` of the best tokens, in no order, and all that equal or exceed the last of them.
std::vector<uint32_t> best_tokens(const Row& row, int64_t width) {
  float least = kNever;
  if (width < static_cast<int64_t>(row.maxima.size())) {
    // so many blocks hold one value each that is not below
    std::vector<float> maxima = row.maxima;
    std::nth_element(maxima.begin(), maxima.begin() + (width - 1), maxima.end(), std::greater<>());
    least = maxima[width - 1];
  }
  std::vector<uint32_t> tokens;
  for (size_t block = 0; block < row.maxima.size(); ++block) {
    if (row.maxima[block] < least) continue;
    const int64_t first = block * kSampleBlock, end = std::min(first + kSampleBlock, row.count);
    for (int64_t i = first; i < end; ++i) {
      if (row.logits[i] >= least) tokens.push_back(static_cast<uint32_t>(i));
    }
  }
  return tokens;
}

// Likeliest first, among equals the lower token: by one integer each, which sorts faster than looking logits up.
void sort_tokens(const Row& row, std::vector<uint32_t>& tokens) {
  std::vector<uint64_t> keys(tokens.size());
  std::transform(tokens.begin(), tokens.end(), keys.begin(), [&](uint32_t token) {
    const float value = row.logits[token] + 0.0f;  // -0 equals 0
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t descending = bits >> 31 ? bits : ~bits & 0x7fffffff;
    return static_cast<uint64_t>(descending) << 32 | token;
  });
  std::sort(keys.begin(), keys.end());
  std::transform(keys.begin(), keys.end(), tokens.begin(), [](uint64_t key) { return static_cast<uint32_t>(key); });
}

std::vector<float> weights_of(const Row& row, const std::vector<uint32_t>& tokens, float floor) {
  std::vector<float> values(tokens.size()), weights(tokens.size());
  std::transform(tokens.begin(), tokens.end(), values.begin(), [&](uint32_t token) { return row.logits[token]; });
  row.kernels.weights(values.data(), values.size(), row.best, row.temperature, floor, weights.data());
  return weights;
}

// How many of the weights have less than `share` before them; the first always.
size_t nucleus(const std::vector<float>& weights, double share) {
  double before = 0;
  size_t kept = 0;
  while (kept < weights.size() && (kept == 0 || before < share)) {
    before += weights[kept++];
  }
  return kept;
}

// The tokens that top_k and top_p leave, likeliest first.
std::vector<uint32_t> kept_tokens(const Row& row, const Draw& draw) {
  if (draw.top_k > 0) {
    std::vector<uint32_t> tokens = best_tokens(row, std::min(draw.top_k, row.count));
    sort_tokens(row, tokens);
    tokens.resize(std::min<size_t>(tokens.size(), draw.top_k));
    if (draw.top_p < 1) {
      const std::vector<float> weights = weights_of(row, tokens, kNever);
      tokens.resize(nucleus(weights, draw.top_p * sum(weights)));
    }
    return tokens;
  }
  const double share = draw.top_p * sum(block_weights(row, kNever));
  for (int64_t width = kFirstWidth;; width *= kWider) {
    std::vector<uint32_t> tokens = best_tokens(row, width);
    const bool all = static_cast<int64_t>(tokens.size()) == row.count;
    if (!all && sum(weights_of(row, tokens, kNever)) <= share) continue;
    sort_tokens(row, tokens);
    const size_t kept = nucleus(weights_of(row, tokens, kNever), share);
    if (all || kept < tokens.size()) {
      tokens.resize(kept);
      return tokens;
    }
  }
}

}  // namespace

Choice choose_token(const SamplingKernels& kernels, const float* logits, int64_t count, const Draw& draw) {
  Row row{kernels, logits, count, draw.temperature, kNever, std::vector<float>(blocks_of(count))};
  const bool broken = kernels.block_maxima(logits, count, row.maxima.data());
  for (float value : row.maxima) row.best = std::max(row.best, value);
  if (broken || !std::isfinite(row.best)) {
    return {0, false};
  }
  if (draw.temperature == 0) {
    return {static_cast<uint32_t>(likeliest(row)), true};
  }
  const float floor = std::log(draw.min_p);
  if (draw.top_k <= 0 && draw.top_p >= 1) {
    return {static_cast<uint32_t>(draw_from_all(row, floor, draw.uniform)), true};
  }
  const std::vector<uint32_t> tokens = kept_tokens(row, draw);
  const std::vector<float> weights = weights_of(row, tokens, floor);
  return {tokens[invert(weights.data(), weights.size(), 0, draw.uniform * sum(weights))], true};
}

}  // namespace umlm
