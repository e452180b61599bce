// What products with quantized rows share for AVX512: scales of rows, and sums of activations that the offsets are for.
// Needs quantized_scales_avx512.h.

namespace umlm::UNIT {

// A row's scales and offsets by group; offsets is null where there are none.
struct RowScales {
  const float* scales;
  const float* offsets;
};

// Floats that `expand` writes to `scales` and to `offsets` at most.
inline int64_t scale_room(const QuantizedMatrix& w) { return w.columns / w.group + 16; }

// Those of row n, for a policy's codes; `scratch` has twice scale_room.
inline RowScales expand(const QuantizedMatrix& w, Codes codes, int64_t n, float* scratch) {
  const int64_t groups = w.columns / w.group;
  float* offsets = scratch + scale_room(w);
  if (!has_offsets(w.layout, codes)) {
    expand_stored(w, n, scratch, offsets);
    return {scratch, nullptr};
  }
  _mm512_storeu_ps(offsets + groups / 16 * 16, _mm512_setzero_ps());
  expand_stored(w, n, scratch, offsets);
  if (!codes.plain()) {
    recode(codes, stores_offsets(w.layout), groups, scratch, offsets);
  }
  return {scratch, offsets};
}

// Sums of a row of activations over groups lie padded with zeros to whole vectors.
inline int64_t padded_groups(const QuantizedMatrix& w) { return (w.columns / w.group + 15) / 16 * 16; }

// Up to 16 activations from element `at` on; from `end` on they are 0.
inline __m512 load_values(const Operand& x, int64_t at, int64_t end) {
  if (at >= end) return _mm512_setzero_ps();
  return load_scales(static_cast<const uint8_t*>(x.source), x.source_type, at,
                     static_cast<int>(end - at < 16 ? end - at : 16));
}

// Sums over groups from sums over 16 values each.
inline void sum_groups(const QuantizedMatrix& w, const float* sixteens, float* sums) {
  const int64_t groups = w.columns / w.group, each = w.group / 16;
  for (int64_t g = 0; g < groups; ++g) {
    float sum = 0;
    for (int64_t i = 0; i < each; ++i) sum += sixteens[g * each + i];
    sums[g] = sum;
  }
  std::memset(sums + groups, 0, (padded_groups(w) - groups) * sizeof(float));
}

}  // namespace umlm::UNIT
