// What products with quantized rows share for AVX512: scales of rows and lanes, and sums of activations that the
// offsets are for. Needs quantized_scales_avx512.h.

#include <type_traits>

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

// The same of R rows from n on.
template <int R>
inline void expand_rows(const QuantizedMatrix& w, Codes codes, int64_t n, float* scratch, RowScales* out) {
  const int64_t groups = w.columns / w.group, room = 2 * scale_room(w);
  if (w.layout > Layout::affine8 || groups > 16 || !codes.plain()) {
    for (int r = 0; r < R; ++r) {
      out[r] = expand(w, codes, n + r, scratch + r * room);
    }
    return;
  }
  auto load = [&](auto type) {  // few affine scales, a vector of them
    for (int r = 0; r < R; ++r) {
      float* row = scratch + r * 32;
      const int64_t at = (n + r) * groups;
      _mm512_storeu_ps(row, load_scales(w.scales, decltype(type)::value, at, static_cast<int>(groups)));
      _mm512_storeu_ps(row + 16, load_scales(w.biases, decltype(type)::value, at, static_cast<int>(groups)));
      out[r] = {row, row + 16};
    }
  };
  switch (w.scale_type) {
    case Type::f32: return load(std::integral_constant<Type, Type::f32>{});
    case Type::f16: return load(std::integral_constant<Type, Type::f16>{});
    default: return load(std::integral_constant<Type, Type::bf16>{});
  }
}

// Which of a row's scales the lanes of a step take.
struct LaneScales {
  __m512i lanes;
  int count, shift;  // scales of a step; steps that share one, as a power of two

  LaneScales(int group, int values) : count(group < values ? values / group : 1), shift(0) {
    while ((values << shift) < group) {
      ++shift;
    }
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    lanes = _mm512_srli_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(count)), 4);
  }

  // Of a step: its first scale, and from there on those of all lanes.
  int64_t first(int64_t step) const { return step * count >> shift; }
  __m512 at(const float* scales) const {
    return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_loadu_ps(scales)));
  }
};

// Sums of a row of activations over groups lie padded with zeros to whole vectors.
inline int64_t padded_groups(const QuantizedMatrix& w) { return (w.columns / w.group + 15) / 16 * 16; }

// What the offsets of a row add to its product with row m, spread over lanes.
inline __m512 offset_sums(const float* offsets, const Operand& x, int64_t m, int64_t groups) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t g = 0; offsets != nullptr && g < groups; g += 16) {
    sum = _mm512_fmadd_ps(_mm512_loadu_ps(offsets + g), _mm512_loadu_ps(x.sums + m * x.sums_stride + g), sum);
  }
  return sum;
}

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
