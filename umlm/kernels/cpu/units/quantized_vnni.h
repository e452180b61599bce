// Quantized products in integers with AVX512 VNNI, made of tiles (quantized_vnni_tile.h).
//
// Few rows of activations meet codes in registers; more meet those of some weight rows, decoded once, in the first or
// second cache. Every sum has the same order either way. Other layouts, and bfloat16 activations where the unit has a
// faster way for them, are left to the functions of these names outside.

namespace umlm::UNIT::vnni {

// Bytes ahead of the current one that are asked for from memory.
inline constexpr int64_t kAhead = 4096;
// Bytes of decoded rows that rows of activations meet before more are decoded.
inline constexpr int64_t kDecodedBytes = 32 << 10;
// Rows of activations of a tile
inline constexpr int kTileRows6 = 6;

// Codes made as they are met.
template <typename Policy>
struct Direct {
  const Policy& policy;
  const uint8_t* rows;
  int64_t row_bytes, columns;
  int64_t step_bytes;
  UMLM_INLINE Direct(const Policy& policy, const Product& p, int64_t n)
      : policy(policy), rows(p.w.weight + n * p.w.row_bytes), row_bytes(p.w.row_bytes), columns(p.w.columns),
        step_bytes(p.step_bytes) {}
  UMLM_INLINE int64_t whole_steps(int64_t) const { return columns / kValues; }
  template <bool kWhole>
  UMLM_INLINE void decode(int r, int64_t step, __m512i* out) const {
    policy.template decode<kWhole>(rows + r * row_bytes, step, columns - step * kValues, out);
  }
  // Ask for the bytes of so many steps, further on: rows follow each other.
  UMLM_INLINE void prefetch(int64_t step, int count) const {
    constexpr int kLines = Policy::kMost > kSmall ? 2 : 1;
    const auto* from = reinterpret_cast<const char*>(rows) + kAhead + step * count * step_bytes;
    for (int i = 0; i < count * kLines; ++i) {
      _mm_prefetch(from + i * step_bytes / kLines, _MM_HINT_T0);
    }
  }
};

// Codes made before.
struct Decoded {
  const __m512i* rows;
  int64_t row_vectors;
  UMLM_INLINE int64_t whole_steps(int64_t steps) const { return steps; }
  UMLM_INLINE void prefetch(int64_t, int) const {}
  template <bool>
  UMLM_INLINE void decode(int r, int64_t step, __m512i* out) const {
    for (int v = 0; v < kVectors; ++v) {
      out[v] = _mm512_load_si512(rows + r * row_vectors + step * kVectors + v);
    }
  }
};

template <typename Policy>
constexpr bool small_codes() {
  return Policy::kMost <= kSmall;
}

// Weight rows n .. n + R with all M rows of activations.
template <typename Policy, int R, int M>
UMLM_INLINE void few_rows(const Product& p, const Policy& policy, int64_t n, float* scratch) {
  RowScales scales[R];
  expand_rows<R>(p.w, p.codes, n, scratch, scales);
  tile<small_codes<Policy>(), R, M>(p, Direct<Policy>(policy, p, n), scales, 0, p.out + n);
}

template <typename Policy, int R, int M>
void direct_product(const Product& p, int64_t begin, int64_t end) {
  const Policy policy(p.w);
  auto* scratch = static_cast<float*>(__builtin_alloca(R * 2 * scale_room(p.w) * sizeof(float)));
  int64_t n = begin;
  for (; n + R <= end; n += R) {
    few_rows<Policy, R, M>(p, policy, n, scratch);
  }
  for (; n < end; ++n) {
    few_rows<Policy, 1, M>(p, policy, n, scratch);
  }
}

template <bool kSmallCodes, int R>
inline void all_rows(const Product& p, const Decoded& source, const RowScales* scales, int64_t m, int64_t count,
                     float* out) {
  switch (count) {
    case 1: return tile<kSmallCodes, R, 1>(p, source, scales, m, out);
    case 2: return tile<kSmallCodes, R, 2>(p, source, scales, m, out);
    case 3: return tile<kSmallCodes, R, 3>(p, source, scales, m, out);
    case 4: return tile<kSmallCodes, R, 4>(p, source, scales, m, out);
    case 5: return tile<kSmallCodes, R, 5>(p, source, scales, m, out);
    default: return tile<kSmallCodes, R, kTileRows6>(p, source, scales, m, out);
  }
}

// Decoded weight rows n .. n + count with all rows of activations.
template <bool kSmallCodes>
void multiply(const Product& p, const __m512i* decoded, const RowScales* scales, int64_t n, int64_t count) {
  const int64_t row_vectors = p.steps * kVectors;
  const int64_t tiles = (p.x.rows + kTileRows6 - 1) / kTileRows6, most = (p.x.rows + tiles - 1) / tiles;
  for (int64_t m = 0; m < p.x.rows; m += most) {
    const int64_t rows = p.x.rows - m < most ? p.x.rows - m : most;
    for (int64_t r = 0; r < count; r += 2) {
      const Decoded source{decoded + r * row_vectors, row_vectors};
      if (r + 2 <= count) {
        all_rows<kSmallCodes, 2>(p, source, scales + r, m, rows, p.out + n + r);
      } else {
        all_rows<kSmallCodes, 1>(p, source, scales + r, m, rows, p.out + n + r);
      }
    }
  }
}

template <typename Policy>
void decode_row(const Direct<Policy>& source, int64_t steps, __m512i* out) {
  const int64_t whole = source.whole_steps(steps);
  for (int64_t step = 0; step < whole; ++step) {
    source.template decode<true>(0, step, out + step * kVectors);
  }
  if (whole < steps) {
    source.template decode<false>(0, whole, out + whole * kVectors);
  }
}

template <typename Policy>
void decoded_product(const Product& p, int64_t begin, int64_t end) {
  const Policy policy(p.w);
  constexpr int64_t kMost = 32;
  const int64_t row_vectors = p.steps * kVectors, fit = kDecodedBytes / (row_vectors * 64) / 2 * 2;
  const int64_t block = fit < 4 ? 4 : fit < kMost ? fit : kMost;
  auto* decoded = static_cast<__m512i*>(__builtin_alloca_with_align(block * row_vectors * 64, 512));
  auto* scratch = static_cast<float*>(__builtin_alloca(block * 2 * scale_room(p.w) * sizeof(float)));
  RowScales scales[kMost];
  for (int64_t n = begin; n < end; n += block) {
    const int64_t count = end - n < block ? end - n : block;
    for (int64_t r = 0; r < count; ++r) {
      decode_row(Direct<Policy>(policy, p, n + r), p.steps, decoded + r * row_vectors);
      scales[r] = expand(p.w, p.codes, n + r, scratch + r * 2 * scale_room(p.w));
    }
    multiply<small_codes<Policy>()>(p, decoded, scales, n, count);
  }
}

inline void product(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                    int64_t end) {
  with_policy(w, [&](auto* policy) {
    using Policy = std::remove_pointer_t<decltype(policy)>;
    const Product p{w,  x, LaneScales(w.group, kValues), Policy::codes(w.layout), w.columns / w.group, steps_of(w),
                    w.row_bytes / steps_of(w), out, stride};
    switch (x.rows) {
      case 1: return direct_product<Policy, 4, 1>(p, begin, end);
      case 2: return direct_product<Policy, 2, 2>(p, begin, end);
      case 3: return direct_product<Policy, 2, 3>(p, begin, end);
      default: return decoded_product<Policy>(p, begin, end);
    }
  });
}

inline int64_t prepared_bytes(const QuantizedMatrix& w) {
  const int64_t otherwise = UNIT::prepared_bytes(w), here = serves(w.layout) ? bytes_of_row(w) : 0;
  return here < otherwise ? otherwise : here;
}

inline Operand choose(const QuantizedMatrix& w, const void* source, Type type, bool exact, int64_t rows,
                      void* scratch) {
#if defined(__AVX512BF16__)
  const bool here = serves(w.layout) && exact && type != Type::bf16;
#else
  const bool here = serves(w.layout);
#endif
  return here ? operand(w, source, type, rows, scratch) : UNIT::operand(w, source, type, exact, rows, scratch);
}

inline void prepare_either(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end) {
  return x.digits != nullptr ? prepare(w, x, begin, end) : UNIT::prepare(w, x, begin, end);
}

inline void quantized_matmul(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                             int64_t end) {
  return x.digits != nullptr ? product(w, x, out, stride, begin, end)
                             : UNIT::quantized_matmul(w, x, out, stride, begin, end);
}

inline constexpr QuantizedKernels quantized_kernels = {
    prepared_bytes, choose, prepare_either, quantized_matmul, quantized_matmul_t, dequantize_row,
};

#undef UMLM_INLINE

}  // namespace umlm::UNIT::vnni
