// Layers with a recurrent state over a packed row of requests: gated delta rule, selective scan, short convolution.
//
// Each function takes tokens [begin, end) of one request, in order, and a part of the state that needs no other part.
// It leaves the state after the last of them in the new states; without tokens that is the state before.
#pragma once

#include "core/types.h"

namespace umlm {

// Values of a token lie together, `stride` of them from one token's first to the next one's.
struct TokenRows {
  const void* data;
  Type type;
  int64_t stride;
};

// Columns of one head's state that are computed together.
inline constexpr int64_t kDeltaColumns = 64;

// S = diag(exp(log_decay)) S;  S += k (beta (v - S^T k))^T;  out = S^T q, all per token and head.
struct GatedDelta {
  int64_t k_heads, v_heads, k_dim, v_dim;  // v_heads is a multiple of k_heads
  TokenRows q, k;                          // [tokens, k_heads, k_dim]
  TokenRows v;                             // [tokens, v_heads, v_dim]
  const float* log_decay;                  // [tokens, v_heads], or [tokens, v_heads, k_dim] per channel
  bool per_channel;
  const float* beta;    // [tokens, v_heads]
  float scale, eps;     // q is multiplied with scale; eps < 0: q and k are not made unit vectors
  const float* states;  // [requests, v_heads, k_dim, v_dim]
  float* new_states;
  void* out;  // [tokens, v_heads, v_dim] in v's type
};

// Rows of the state, a head's channels one after the other, that are computed together.
inline constexpr int64_t kScanRows = 32;
// b and c are filled up with zeros to a multiple of so many values.
inline constexpr int64_t kScanPad = 16;

// h = exp(dt a) h + dt x b;  out = h . c + skip x, per token and row. Row r belongs to head r / channels.
struct SelectiveScan {
  int64_t heads, channels, groups, size, padded;  // heads is a multiple of groups; padded: size with kScanPad
  TokenRows x;                                    // [tokens, heads, channels]
  const float* dt;                                // [tokens, heads]
  const float* a;                                 // [heads], or [heads, size] per place
  bool per_place;
  const float *b, *c;   // [tokens, groups, padded]
  const float* skip;    // [heads] or null
  const float* states;  // [requests, heads, channels, size]
  float* new_states;
  void* out;  // [tokens, heads, channels] in x's type
};

inline constexpr int64_t kConvChannels = 64;
inline constexpr int64_t kMostTaps = 8;

// out[t, c] = bias[c] + sum_j weight[c, j] x[t - taps + 1 + j, c]; the state holds the last taps - 1 tokens of x.
struct ShortConv {
  int64_t channels, taps;
  TokenRows x;         // [tokens, channels]
  const void* weight;  // [channels, taps]
  const void* bias;    // [channels] or null
  Type weight_type, bias_type;
  const void* states;  // [requests, taps - 1, channels]
  void* new_states;
  Type state_type;
  void* out;  // [tokens, channels] in x's type
};

struct RecurrenceKernels {
  // float32 values that gated_delta needs
  int64_t (*delta_scratch)(const GatedDelta& a);
  // columns [column, column + kDeltaColumns) of a head's state and output, as far as there are any
  void (*gated_delta)(const GatedDelta& a, int64_t request, int64_t begin, int64_t end, int64_t head, int64_t column,
                      float* scratch);
  int64_t (*scan_scratch)(const SelectiveScan& a);
  // rows [row, row + kScanRows), as far as there are any
  void (*selective_scan)(const SelectiveScan& a, int64_t request, int64_t begin, int64_t end, int64_t row,
                         float* scratch);
  // channels [channel, channel + kConvChannels), as far as there are any
  void (*short_conv)(const ShortConv& a, int64_t request, int64_t begin, int64_t end, int64_t channel);
};

}  // namespace umlm
