// One or two rows of activations meet the codes of weights in registers, four weight rows at a time: every byte of the
// matrix is read once, as it lies. Needs quantized_vnni_heads.h.

namespace umlm::UNIT::vnni {

// Ask for the bytes that four rows will need later: those of one step, and of their scales once a row.
template <typename Policy>
struct Prefetch {
  const char *codes, *scales, *biases;
  int64_t step_bytes, scale_bytes;
  static constexpr int kLines = Policy::kMost > 31 ? 8 : 5;  // that four rows have in a step

  Prefetch(const Product& p, int64_t n) : codes(reinterpret_cast<const char*>(p.w.weight + n * p.w.row_bytes) + kAhead) {
    const QuantizedMatrix& w = p.w;
    step_bytes = 4 * (w.row_bytes / p.steps);
    const int64_t row = p.groups * (w.biases == nullptr ? 1 : w.scale_type == Type::f32 ? 4 : 2);
    const int64_t at = (n + kAhead / w.row_bytes) * row;
    scale_bytes = w.scales == nullptr ? 0 : 4 * row;
    scales = reinterpret_cast<const char*>(w.scales) + at;
    biases = w.biases == nullptr ? scales : reinterpret_cast<const char*>(w.biases) + at;
  }
  UMLM_INLINE void of_step(int64_t step) const {
    for (int i = 0; i < kLines; ++i) _mm_prefetch(codes + step * step_bytes + 64 * i, _MM_HINT_T0);
  }
  UMLM_INLINE void of_scales() const {
    for (int64_t i = 0; i < scale_bytes; i += 64) {
      _mm_prefetch(scales + i, _MM_HINT_T0);
      _mm_prefetch(biases + i, _MM_HINT_T0);
    }
  }
};

// Weight rows n .. n + count, at most four, with all M rows of activations.
template <typename Policy, int C, int D, int M>
UMLM_INLINE void four_rows(const Product& p, const Policy& policy, const Spread<C>& spread, int64_t n, int64_t count,
                           float* scratch) {
  constexpr int V = Chunks<C>::kVectors;
  const Operand& x = p.x;
  const FourRows<Policy, C> rows(p, n, scratch);
  const Prefetch<Policy> prefetch(p, n);
  prefetch.of_scales();
  __m512 sums[M][V] = {};
  auto one = [&](int64_t step, auto whole) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(whole)::value;
    __m512i codes[4][kVectors];
    for (int r = 0; r < 4; ++r) {
      policy.template decode<kWhole>(rows.codes[r], step, p.w.columns - step * kValues, codes[r]);
    }
    prefetch.of_step(step);
    __m512 scales[V], offsets[V];
    rows.template at<kWhole>(spread, step, scales, offsets);
#pragma GCC unroll 2
    for (int i = 0; i < M; ++i) {
      __m512 found[V], totals[V];
      step_sums<C, D>(codes, x.digits + i * x.digits_stride + step * D * kDigitBytes, found);
      const __m512 unit = _mm512_set1_ps(x.units[i * x.units_stride + step]);
      if (rows.has_offsets) spread.all(x.sums + i * x.sums_stride + step * Chunks<C>::kCount, totals);
      for (int v = 0; v < V; ++v) {
        sums[i][v] = _mm512_fmadd_ps(found[v], _mm512_mul_ps(scales[v], unit), sums[i][v]);
        if (rows.has_offsets) sums[i][v] = _mm512_fmadd_ps(offsets[v], totals[v], sums[i][v]);
      }
    }
  };
  const int64_t whole = p.w.columns / kValues;
  for (int64_t step = 0; step < whole; ++step) one(step, std::true_type{});
  if (whole < p.steps) one(whole, std::false_type{});
  const auto present = static_cast<__mmask8>((1u << count) - 1);
  for (int i = 0; i < M; ++i) _mm_mask_storeu_ps(p.out + i * p.stride + n, present, total<C>(sums[i]));
}

template <typename Policy, int C, int D, int M>
void few_rows(const Product& p, int64_t begin, int64_t end) {
  const Policy policy(p.w);
  const Spread<C> spread;
  auto* scratch = static_cast<float*>(__builtin_alloca(4 * 2 * scale_room(p.w) * sizeof(float)));
  for (int64_t n = begin; n < end; n += 4) {
    four_rows<Policy, C, D, M>(p, policy, spread, n, end - n < 4 ? end - n : 4, scratch);
  }
}

}  // namespace umlm::UNIT::vnni
