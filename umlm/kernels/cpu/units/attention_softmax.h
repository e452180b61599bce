// The softmax of attention, a tile of rows and a block of scores at a time.

namespace umlm::UNIT {

inline constexpr float kInfinity = __builtin_inff();

struct Range {
  int64_t begin, end;
};

inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

// exp of lanes z in -86 .. 88.72, of which n is about z / log 2, or of NaN
inline Lanes exp_of_parts(Lanes z, Integers n) {
  const Lanes whole = __builtin_convertvector(n, Lanes);
  const Lanes r = fused(whole, Lanes{} + 2.12194440e-4f, fused(whole, Lanes{} - 0.693359375f, z));
  Lanes p = fused(Lanes{} + 1.3811660464853048e-3f, r, Lanes{} + 8.370134979486465e-3f);
  p = fused(p, r, Lanes{} + 4.166852682828903e-2f);
  p = fused(p, r, Lanes{} + 0.16666509211063385f);
  p = fused(p, r, Lanes{} + 0.4999999403953552f);
  p = held(held(fused(held(r * r), p, r)) + 1.0f);
  return (Lanes)((Integers)p + (n << 23));
}

// exp of lanes that are 0 or less, or NaN; 0 below e^-86, which spares the processor subnormal numbers
inline Lanes exp_below(Lanes x) {
  const Lanes z = x < -86.0f ? Lanes{} - 86.0f : x, scaled = z * 1.44269504f;
#if defined(__AVX512F__)
  const Integers n = (Integers)_mm512_cvtps_epi32((__m512)scaled);
#else
  const Integers n = __builtin_convertvector(scaled - 0.5f, Integers);
#endif
  return x < -86.0f ? Lanes{} : exp_of_parts(z, n);
}

// exp of any lanes; 0 below e^-86 here too
inline Lanes exp_lanes(Lanes x) {
  const Lanes above = x < -86.0f ? Lanes{} - 86.0f : x, z = above > 88.72f ? Lanes{} + 88.72f : above;
  const Lanes scaled = z * 1.44269504f;
  const Integers n = __builtin_convertvector(scaled + (scaled < 0.0f ? Lanes{} - 0.5f : Lanes{} + 0.5f), Integers);
  const Lanes y = exp_of_parts(z, n);
  return x < -86.0f ? Lanes{} : x > 88.72f ? Lanes{} + kInfinity : y;
}

inline void cap(float softcap, float* scores) {
  for (int j = 0; j < kBlockKeys; ++j) scores[j] = softcap * tanh(scores[j] / softcap);
}

// Scores outside of `seen` become -infinity.
inline void mask(Range seen, float* scores) {
  if (seen.begin <= 0 && seen.end >= kBlockKeys) return;
  const int32_t begin = static_cast<int32_t>(seen.begin), end = static_cast<int32_t>(seen.end);
  for (int32_t j = 0; j < kBlockKeys; ++j) scores[j] = j >= begin && j < end ? scores[j] : -kInfinity;
}

// The same for keys that lie after the query or before its window.
inline void mask_by_position(const Attention& a, int64_t query, int64_t base, Range seen, float* scores) {
  const int64_t last = a.positions[query], first = a.window > 0 ? last - a.window + 1 : INT64_MIN;
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const int64_t position = a.key_positions[base + j];
    if (position < first || position > last) scores[j] = -kInfinity;
  }
}

// The largest lane of each of four vectors.
inline Four largest_lanes(const Lanes (&v)[4]) {
  Lanes t[4];
  transpose_quarters(v[0], v[1], v[2], v[3], t);
  const Lanes quarters = larger(larger(t[0], t[1]), larger(t[2], t[3]));
  Four most = quarter(quarters, 0);
  for (int i = 1; i < kLanes / 4; ++i) {
    const Four next = quarter(quarters, i);
    most = next > most ? next : most;
  }
  return most;
}

// Turn the scores of rows into weights; `ends` are the largest score and the sum of weights so far, `stride` floats
// from row to row. decay is what a row's sums so far are to be multiplied with.
template <int kRows>
void soften(float* scores, float* ends, int64_t stride, float* decay) {
  Lanes most[4] = {}, total[4] = {};
  Four top = {}, sum = {};
  for (int r = 0; r < kRows; ++r) {
    top[r] = ends[r * stride], sum[r] = ends[r * stride + 1];
    most[r] = get(scores + r * kBlockKeys);
    for (int j = kLanes; j < kBlockKeys; j += kLanes) most[r] = larger(get(scores + r * kBlockKeys + j), most[r]);
  }
  const Four tops = largest_lanes(most), next = tops > top ? tops : top;
  // where nothing was seen yet, differences to 0 stay -infinity
  const Four zero = next == -kInfinity ? Four{} : next;
  alignas(64) float lanes[kLanes] = {};
  const Four past = top - zero;
  __builtin_memcpy(lanes, &past, sizeof(past));
  const Four decays = quarter(exp_below(get(lanes)), 0);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kBlockKeys; j += kLanes) {
      const Lanes weights = exp_below(get(scores + r * kBlockKeys + j) - spread(zero[r]));
      put(scores + r * kBlockKeys + j, weights);
      total[r] = held(total[r] + weights);
    }
  }
  sum = held(held(sum * decays) + sums_over_lanes(total));
  for (int r = 0; r < kRows; ++r) ends[r * stride] = next[r], ends[r * stride + 1] = sum[r];
  for (int r = 0; r < kRows; ++r) decay[r] = decays[r];
}

}  // namespace umlm::UNIT
