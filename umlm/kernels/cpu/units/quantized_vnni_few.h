// One or two rows of activations meet the codes of weights in registers, four weight rows at a time: every byte of the
// matrix is read once, as it lies. Needs quantized_vnni_sums.h.

namespace umlm::UNIT::vnni {

// Bytes ahead of the current one that are asked for from memory.
inline constexpr int64_t kAhead = 16 << 10;

// Ask for the scales of the four rows that will come so many bytes of codes later.
UMLM_INLINE void prefetch_scales(const Product& p, int64_t n) {
  const QuantizedMatrix& w = p.w;
  if (w.scales == nullptr) return;
  const int item = w.biases == nullptr ? 1 : w.scale_type == Type::f32 ? 4 : 2;
  const int64_t rows = kAhead / w.row_bytes, at = (n + rows) * p.groups * item, count = 4 * p.groups * item;
  for (int64_t i = 0; i < count; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w.scales) + at + i, _MM_HINT_T0);
    if (w.biases != nullptr) _mm_prefetch(reinterpret_cast<const char*>(w.biases) + at + i, _MM_HINT_T0);
  }
}

// Where four weight rows lie, and what belongs to them; rows that do not exist are copies of the last.
struct FourRows {
  const uint8_t* codes[4];
  const float *scales[4], *offsets[4];
  FourRows(const Product& p, int64_t n, float* scratch) {
    const int64_t room = 2 * scale_room(p.w);
    for (int r = 0; r < 4; ++r) {
      const int64_t row = n + r < p.w.rows ? n + r : p.w.rows - 1;
      codes[r] = p.w.weight + row * p.w.row_bytes;
      const RowScales own = expand(p.w, p.codes, row, scratch + r * room);
      scales[r] = own.scales, offsets[r] = own.offsets;
    }
  }
};

// Weight rows n .. n + count, at most four, with all M rows of activations.
template <typename Policy, int C, int D, int M>
UMLM_INLINE void four_rows(const Product& p, const Policy& policy, const Spread<C>& spread, int64_t n, int64_t count,
                           float* scratch) {
  constexpr int V = Chunks<C>::kVectors;
  const Operand& x = p.x;
  const FourRows rows(p, n, scratch);
  const bool has_offsets = rows.offsets[0] != nullptr;
  __m512 sums[M][V] = {};
  const char* ahead = reinterpret_cast<const char*>(rows.codes[0]) + kAhead;
  const int64_t step_bytes = p.w.row_bytes / p.steps;
  constexpr int kLines = Policy::kMost > 31 ? 8 : 5;  // of 64 bytes, per step of four rows
  auto one = [&](int64_t step, auto whole) __attribute__((always_inline)) {
    __m512i codes[4][kVectors];
    for (int r = 0; r < 4; ++r) {
      policy.template decode<decltype(whole)::value>(rows.codes[r], step, p.w.columns - step * kValues, codes[r]);
    }
    for (int i = 0; i < kLines; ++i) _mm_prefetch(ahead + (step * 4 * step_bytes + 64 * i), _MM_HINT_T0);
    __m512 scales[V], offsets[V];
    spread.each(rows.scales, step * Chunks<C>::kCount, scales);
    if (has_offsets) spread.each(rows.offsets, step * Chunks<C>::kCount, offsets);
#pragma GCC unroll 2
    for (int i = 0; i < M; ++i) {
      __m512 found[V], totals[V];
      step_sums<C, D>(codes, x.digits + i * x.digits_stride + step * D * kDigitBytes, found);
      const __m512 unit = _mm512_set1_ps(x.units[i * x.units_stride + step]);
      if (has_offsets) spread.all(x.sums + i * x.sums_stride + step * Chunks<C>::kCount, totals);
      for (int v = 0; v < V; ++v) {
        sums[i][v] = _mm512_fmadd_ps(found[v], _mm512_mul_ps(scales[v], unit), sums[i][v]);
        if (has_offsets) sums[i][v] = _mm512_fmadd_ps(offsets[v], totals[v], sums[i][v]);
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
    prefetch_scales(p, n);
    four_rows<Policy, C, D, M>(p, policy, spread, n, end - n < 4 ? end - n : 4, scratch);
  }
}

}  // namespace umlm::UNIT::vnni
