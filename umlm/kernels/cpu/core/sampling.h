// One token from a row of logits: filters and a draw.
#pragma once

#include "core/types.h"

namespace umlm {

// How a row's token is drawn; temperature 0 takes the likeliest and draws nothing.
struct Draw {
  float temperature;
  int64_t top_k;  // 0: all
  float top_p;
  float min_p;
  float uniform;  // in [0, 1): where the cumulative distribution is inverted
};

struct Choice {
  uint32_t token;
  bool usable;  // false for a row with NaN or +infinity, or with nothing above -infinity
};

// Rows are searched and summed in blocks of so many values.
constexpr int64_t kSampleBlock = 128;

struct SamplingKernels {
  // The largest value of every block; true if any value is NaN.
  bool (*block_maxima)(const float* values, int64_t count, float* maxima);
  // exp((value - best) / temperature), 0 where the exponent is below `floor`; and its sums over blocks.
  void (*weights)(const float* values, int64_t count, float best, float temperature, float floor, float* weights);
  void (*block_weights)(const float* values, int64_t count, float best, float temperature, float floor, float* sums);
};

// The token of a row of `count` logits. Filters in the order top_k, top_p, min_p, each seeing what the one before left;
// among equal logits the lower token comes first. The draw goes by token without top_k and top_p, else from the
// likeliest on.
Choice choose_token(const SamplingKernels& kernels, const float* logits, int64_t count, const Draw& draw);

}  // namespace umlm
