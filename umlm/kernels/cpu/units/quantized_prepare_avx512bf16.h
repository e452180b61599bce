// Activations made ready for the products: bf16 parts in the order in which a policy's steps meet them, and sums.

#include <type_traits>

namespace umlm::UNIT {

// Call visit(policy pointer) for the matrix's layout.
template <typename Visit>
auto with_policy(const QuantizedMatrix& w, Visit&& visit) {
  switch (w.layout) {
    case Layout::affine2: return visit(static_cast<Fields<2>*>(nullptr));
    case Layout::affine3: return visit(static_cast<Fields<3>*>(nullptr));
    case Layout::affine5: return visit(static_cast<Fields<5>*>(nullptr));
    case Layout::affine6: return visit(static_cast<Fields<6>*>(nullptr));
    case Layout::affine8: return visit(static_cast<Bytes*>(nullptr));
    case Layout::mxfp8: return visit(static_cast<Floats8*>(nullptr));
    case Layout::ggml_q4_0:
    case Layout::ggml_q4_1:
    case Layout::ggml_iq4_nl:
    case Layout::ggml_iq4_xs:
    case Layout::ggml_mxfp4: return visit(static_cast<SplitNibbles*>(nullptr));
    case Layout::ggml_q5_0:
    case Layout::ggml_q5_1: return visit(static_cast<SplitFives*>(nullptr));
    case Layout::ggml_q8_0: return visit(static_cast<Q8Blocks*>(nullptr));
    case Layout::ggml_q2_k: return visit(static_cast<KBlocks<Q2K>*>(nullptr));
    case Layout::ggml_q3_k: return visit(static_cast<KBlocks<Q3K>*>(nullptr));
    case Layout::ggml_q4_k: return visit(static_cast<KBlocks<Q4K>*>(nullptr));
    case Layout::ggml_q5_k: return visit(static_cast<KBlocks<Q5K>*>(nullptr));
    case Layout::ggml_q6_k: return visit(static_cast<KBlocks<Q6K>*>(nullptr));
    default: return visit(static_cast<Nibbles*>(nullptr));
  }
}

// What those policies make of the layout's integers.
inline Codes bf16_codes(Layout layout) {
  switch (layout) {
    case Layout::affine2: return {1, 4};
    case Layout::affine3: return {1, 8};
    case Layout::affine5: return {1, 32};
    case Layout::affine6: return {1, 64};
    case Layout::affine8: return {0.5f, -255};
    case Layout::ggml_q8_0: return {0.5f, 1};
    default: return {1, 0};
  }
}

template <typename Policy>
int64_t steps_of(const QuantizedMatrix& w) {
  return (w.columns + Policy::kValues - 1) / Policy::kValues;
}

inline int64_t operand_stride(const QuantizedMatrix& w) {
  return with_policy(w, [&](auto* policy) {
    using Policy = std::remove_pointer_t<decltype(policy)>;
    return steps_of<Policy>(w) * Policy::kValues;
  });
}

inline int64_t prepared_bytes(const QuantizedMatrix& w) {
  return 2 * operand_stride(w) * sizeof(uint16_t) + padded_groups(w) * sizeof(float);
}

inline Operand operand(const QuantizedMatrix& w, const void* source, Type type, bool exact, int64_t rows,
                       void* scratch) {
  int64_t stride = operand_stride(w);
  auto* high = static_cast<uint16_t*>(scratch);
  auto* low = high + rows * stride;
  auto* sums = reinterpret_cast<float*>(low + rows * stride);
  const bool split = exact && type != Type::bf16;
  return {.rows = rows, .columns = w.columns, .source = source, .source_type = type, .high = high,
          .low = split ? low : nullptr, .sums = sums, .stride = stride, .sums_stride = padded_groups(w)};
}

// Where each word of a step comes from, as indices for vpermi2w.
template <typename Policy>
struct Order {
  Words32 index[Policy::kVectors];
  constexpr Order() : index{} {
    for (int v = 0; v < Policy::kVectors; ++v) {
      for (int i = 0; i < 32; ++i) index[v].words[i] = static_cast<uint16_t>(Policy::source(v, i));
    }
  }
};

template <typename Policy>
inline constexpr Order<Policy> kOrder{};

// A step's words in the policy's order.
template <typename Policy>
inline void reorder(const __m512i* words, uint16_t* out) {
  for (int v = 0; v < Policy::kVectors; ++v) {
    __m512i index = kOrder<Policy>.index[v];
    __m512i first = _mm512_permutex2var_epi16(words[0], index, words[1]);
    if constexpr (Policy::kVectors == 4) {
      __m512i second = _mm512_permutex2var_epi16(words[2], index, words[3]);
      __mmask32 late = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
      first = _mm512_mask_mov_epi16(first, late, second);
    }
    _mm512_storeu_si512(out + 32 * v, first);
  }
}

inline __m512 upper(__m512i words, int half) {
  __m256i sixteen = half == 0 ? _mm512_castsi512_si256(words) : _mm512_extracti64x4_epi64(words, 1);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen), 16));
}

// sums[i] = the sum of values i of 16 as the products see them, so that scale * q and offset err alike.
template <typename Policy>
inline void prepare_row(const QuantizedMatrix& w, const Operand& x, int64_t m, float* sums) {
  const int64_t steps = steps_of<Policy>(w), end = (m + 1) * x.columns;
  auto* high = const_cast<uint16_t*>(x.high) + m * x.stride;
  auto* low = const_cast<uint16_t*>(x.low) + m * x.stride;
  for (int64_t step = 0; step < steps; ++step) {
    __m512i parts[2][Policy::kVectors];
    for (int v = 0; v < Policy::kVectors; ++v) {
      const int64_t at = m * x.columns + step * Policy::kValues + 32 * v;
      __m512 values[2] = {load_values(x, at, end), load_values(x, at + 16, end)};
      parts[0][v] = (__m512i)_mm512_cvtne2ps_pbh(values[1], values[0]);
      __m512 seen[2] = {upper(parts[0][v], 0), upper(parts[0][v], 1)};
      if (x.low != nullptr) {
        parts[1][v] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(values[1], seen[1]), _mm512_sub_ps(values[0], seen[0]));
        seen[0] = _mm512_add_ps(seen[0], upper(parts[1][v], 0));
        seen[1] = _mm512_add_ps(seen[1], upper(parts[1][v], 1));
      }
      sums[step * Policy::kValues / 16 + 2 * v] = _mm512_reduce_add_ps(seen[0]);
      sums[step * Policy::kValues / 16 + 2 * v + 1] = _mm512_reduce_add_ps(seen[1]);
    }
    reorder<Policy>(parts[0], high + step * Policy::kValues);
    if (x.low != nullptr) {
      reorder<Policy>(parts[1], low + step * Policy::kValues);
    }
  }
}

inline void prepare(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end) {
  auto* sixteens = static_cast<float*>(__builtin_alloca((x.stride / 16 + 16) * sizeof(float)));
  for (int64_t m = begin; m < end; ++m) {
    with_policy(w, [&](auto* policy) { prepare_row<std::remove_pointer_t<decltype(policy)>>(w, x, m, sixteens); });
    sum_groups(w, sixteens, const_cast<float*>(x.sums) + m * x.sums_stride);
  }
}

}  // namespace umlm::UNIT
