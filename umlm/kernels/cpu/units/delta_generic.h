// The gated delta rule: a few vectors of a state's columns, all tokens of a request one after the other.
//
// Columns of a state never meet, so that a tile of them stays in the first cache while tokens go by. The first token
// reads the old state and the last one writes the new: for one token, the state is read and written once.

namespace umlm::UNIT {

// Vectors of columns that share the loads of a token's key and query.
inline constexpr int kDeltaVectors = 4;

// What all columns of a head need to know of a token; in float32, filled up with zeros to whole vectors.
struct DeltaToken {
  float *query, *key, *decay;
  float* read;  // key * decay: reads from the state before it decays
};

inline int64_t whole_lanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

inline int64_t delta_scratch(const GatedDelta& a) {
  return 4 * whole_lanes(a.k_dim) + a.k_dim * kDeltaVectors * kLanes;
}

// values * scale / sqrt(sum of squares + eps)
inline void to_unit_length(float* values, int64_t count, float eps, float scale) {
  Lanes squares = {};
  for (int64_t i = 0; i < count; i += kLanes) squares = fused(get(values + i), get(values + i), squares);
  float total[4];
  sum_lanes(squares, Lanes{}, Lanes{}, Lanes{}, total);
  const Lanes factor = spread(scale / __builtin_sqrtf(total[0] + eps));
  for (int64_t i = 0; i < count; i += kLanes) put(values + i, held(get(values + i) * factor));
}

inline void widen_head(const TokenRows& rows, int64_t token, int64_t head, int64_t dim, float* to) {
  widen(element(rows.data, rows.type, token * rows.stride + head * dim), rows.type, dim, to);
}

inline void take_token(const GatedDelta& a, int64_t token, int64_t head, const DeltaToken& t) {
  const int64_t k_head = head / (a.v_heads / a.k_heads), dim = a.k_dim, padded = whole_lanes(dim);
  widen_head(a.q, token, k_head, dim, t.query);
  widen_head(a.k, token, k_head, dim, t.key);
  if (a.eps >= 0) {
    to_unit_length(t.query, padded, a.eps, a.scale);
    to_unit_length(t.key, padded, a.eps, 1.0f);
  } else {
    for (int64_t i = 0; i < dim; ++i) t.query[i] *= a.scale;
  }
  const float* decay = a.log_decay + (token * a.v_heads + head) * (a.per_channel ? dim : 1);
  if (a.per_channel) {
    widen(decay, Type::f32, dim, t.decay);
    for (int64_t i = 0; i < dim; i += kLanes) put(t.decay + i, exp_lanes(get(t.decay + i)));
  } else {
    const float factor = exp_lanes(spread(*decay))[0];
    for (int64_t i = 0; i < dim; ++i) t.decay[i] = factor;
  }
  for (int64_t i = 0; i < dim; ++i) t.read[i] = t.key[i] * t.decay[i];
}

// Columns of a state: rows lie `stride` values apart.
struct Columns {
  float* data;
  int64_t stride;
};

// One token: the state after it goes to `to`, which may be `from`; values become outputs.
template <int kVectors>
inline void delta_step(const DeltaToken& t, int64_t k_dim, Columns from, Columns to, float beta, float* values) {
  // two sums a vector, of even and odd rows, hide the time that one takes
  Lanes recalled[2][kVectors] = {}, change[kVectors], out[kVectors] = {};
  int64_t k = 0;
  for (; k + 2 <= k_dim; k += 2) {
    for (int odd = 0; odd < 2; ++odd) {
      const float* row = from.data + (k + odd) * from.stride;
      const Lanes read = spread(t.read[k + odd]);
      for (int i = 0; i < kVectors; ++i) recalled[odd][i] = fused(read, get(row + i * kLanes), recalled[odd][i]);
    }
  }
  if (k < k_dim) {
    const Lanes read = spread(t.read[k]);
    for (int i = 0; i < kVectors; ++i) {
      recalled[0][i] = fused(read, get(from.data + k * from.stride + i * kLanes), recalled[0][i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    const Lanes sum = held(recalled[0][i] + recalled[1][i]);
    change[i] = held(held(get(values + i * kLanes) - sum) * spread(beta));
  }
  for (k = 0; k < k_dim; ++k) {
    const float* row = from.data + k * from.stride;
    float* next = to.data + k * to.stride;
    const Lanes decay = spread(t.decay[k]), key = spread(t.key[k]), query = spread(t.query[k]);
    for (int i = 0; i < kVectors; ++i) {
      const Lanes state = fused(key, change[i], held(decay * get(row + i * kLanes)));
      put(next + i * kLanes, state);
      out[i] = fused(query, state, out[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) put(values + i * kLanes, out[i]);
}

// Rows of `count` values.
inline void copy_rows(const float* from, int64_t stride, int64_t rows, int64_t count, Columns to) {
  for (int64_t i = 0; i < rows; ++i) {
    __builtin_memcpy(to.data + i * to.stride, from + i * stride, count * sizeof(float));
  }
}

// `count` columns from `column` on; fewer than the vectors hold are computed in a tile that is filled up with zeros.
template <int kVectors>
void delta_columns(const GatedDelta& a, int64_t request, int64_t begin, int64_t end, int64_t head, int64_t column,
                   int64_t count, float* scratch) {
  constexpr int64_t kWidth = kVectors * kLanes;
  const int64_t padded = whole_lanes(a.k_dim), at = (request * a.v_heads + head) * a.k_dim * a.v_dim + column;
  // the old state is only read
  const Columns before{const_cast<float*>(a.states) + at, a.v_dim}, after{a.new_states + at, a.v_dim};
  const Columns tile{scratch + 4 * padded, kWidth};
  const DeltaToken t{scratch, scratch + padded, scratch + 2 * padded, scratch + 3 * padded};
  __builtin_memset(scratch, 0, 4 * padded * sizeof(float));
  const bool part = count < kWidth;
  if (part) {
    __builtin_memset(tile.data, 0, a.k_dim * kWidth * sizeof(float));
    copy_rows(before.data, before.stride, a.k_dim, count, tile);
  }
  alignas(64) float values[kWidth] = {};
  for (int64_t token = begin; token < end; ++token) {
    const int64_t place = token * a.v_heads + head;
    take_token(a, token, head, t);
    widen(element(a.v.data, a.v.type, token * a.v.stride + head * a.v_dim + column), a.v.type, count, values);
    delta_step<kVectors>(t, a.k_dim, token == begin && !part ? before : tile, token + 1 == end && !part ? after : tile,
                         a.beta[place], values);
    narrow(values, a.v.type, count, const_cast<uint8_t*>(element(a.out, a.v.type, place * a.v_dim + column)));
  }
  if (part) copy_rows(tile.data, kWidth, a.k_dim, count, after);
}

inline void gated_delta(const GatedDelta& a, int64_t request, int64_t begin, int64_t end, int64_t head, int64_t column,
                        float* scratch) {
  const int64_t last = column + kDeltaColumns < a.v_dim ? column + kDeltaColumns : a.v_dim;
  if (begin == end) {
    const int64_t at = (request * a.v_heads + head) * a.k_dim * a.v_dim + column;
    copy_rows(a.states + at, a.v_dim, a.k_dim, last - column, {a.new_states + at, a.v_dim});
    return;
  }
  constexpr int64_t kWidth = kDeltaVectors * kLanes;
  for (; column + kWidth <= last; column += kWidth) {
    delta_columns<kDeltaVectors>(a, request, begin, end, head, column, kWidth, scratch);
  }
  for (; column < last; column += kLanes) {
    const int64_t count = last - column < kLanes ? last - column : kLanes;
    delta_columns<1>(a, request, begin, end, head, column, count, scratch);
  }
}

}  // namespace umlm::UNIT
