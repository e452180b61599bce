// Quantized products with AVX512 BF16 and VBMI: integers of a group are exact in bf16, sums are float32.
//
// A policy takes a step of a weight row into bf16 vectors of 32 values; vdpbf16ps adds pairs into 16 lanes, and the
// values of a lane share a scale, so that one multiply-add a step applies the scales. Activations are split into
// high + low bf16 parts unless high is exact. Few rows of activations meet the vectors in registers; more meet those
// of some weight rows, decoded once, in the first or second cache. Every sum has the same order either way.

namespace umlm::UNIT {

// Bytes ahead of the current one that are asked for from memory.
inline constexpr int64_t kAhead = 4096;
// Bytes of decoded rows that rows of activations meet before more are decoded.
inline constexpr int64_t kDecodedBytes = 96 << 10;
// Rows of activations of a tile
inline constexpr int kTileRows16 = 6;

inline __m512 dot(__m512 sum, __m512i a, const uint16_t* b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)_mm512_loadu_si512(b));
}

inline float total(__m512 sum) {
  asm("" : "+v"(sum));  // nothing around may mix with this sum
  float value = _mm512_reduce_add_ps(sum);
  asm("" : "+v"(value));
  return value;
}

// R weight rows, as source(r, step, vectors) gives them, times M activation rows.
template <int kVectors, int R, int M, bool kSplit, typename Source>
inline void tile(const Source& source, const LaneScales& lanes, const RowScales* scales, int64_t steps, int64_t groups,
                 const Operand& x, int64_t m, float* out, int64_t stride) {
  __m512 acc[R][M];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < M; ++i) {
      acc[r][i] = offset_sums(scales[r].offsets, x, m + i, groups);
    }
  }
  const uint16_t* high = x.high + m * x.stride;
  const uint16_t* low = kSplit ? x.low + m * x.stride : nullptr;
  auto one = [&](int64_t step, auto whole) {
    __m512i parts[R][kVectors];
    __m512 scale[R];
    for (int r = 0; r < R; ++r) {
      source.template decode<decltype(whole)::value>(r, step, parts[r]);
      scale[r] = lanes.at(scales[r].scales + lanes.first(step));
    }
    for (int i = 0; i < M; ++i) {
      const int64_t at = i * x.stride + step * kVectors * 32;
      for (int r = 0; r < R; ++r) {
        __m512 sum = _mm512_setzero_ps();
        for (int v = 0; v < kVectors; ++v) {
          sum = dot(sum, parts[r][v], high + at + 32 * v);
          if (kSplit) {
            sum = dot(sum, parts[r][v], low + at + 32 * v);
          }
        }
        acc[r][i] = _mm512_fmadd_ps(sum, scale[r], acc[r][i]);
      }
    }
  };
  const int64_t whole = source.whole_steps(steps);
  for (int64_t step = 0; step < whole; ++step) {
    one(step, std::true_type{});
  }
  if (whole < steps) {
    one(whole, std::false_type{});
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < M; ++i) {
      out[(m + i) * stride + r] = total(acc[r][i]);
    }
  }
}

// Vectors made as they are met.
template <typename Policy>
struct Direct {
  const Policy& policy;
  const uint8_t* rows;
  int64_t row_bytes, columns;
  int64_t step_bytes;  // on average
  int64_t whole_steps(int64_t) const { return columns / Policy::kValues; }
  template <bool kWhole>
  void decode(int r, int64_t step, __m512i* out) const {
    const uint8_t* row = rows + r * row_bytes;
    _mm_prefetch(reinterpret_cast<const char*>(row + step * step_bytes + kAhead), _MM_HINT_T0);
    policy.template decode<kWhole>(row, step, columns - step * Policy::kValues, out);
  }
};

// Vectors made before.
template <int kVectors>
struct Decoded {
  const __m512i* rows;
  int64_t row_vectors;
  int64_t whole_steps(int64_t steps) const { return steps; }
  template <bool>
  void decode(int r, int64_t step, __m512i* out) const {
    for (int v = 0; v < kVectors; ++v) {
      out[v] = _mm512_load_si512(rows + r * row_vectors + step * kVectors + v);
    }
  }
};

// What a loop over weight rows shares.
struct Product {
  const QuantizedMatrix& w;
  const Operand& x;
  const LaneScales lanes;
  const int64_t groups, steps;
  float* out;
  int64_t stride;

  int64_t scale_room() const { return umlm::UNIT::scale_room(w); }
  RowScales expand_row(int64_t n, float* scratch) const { return expand(w, bf16_codes(w.layout), n, scratch); }
};

// R weight rows with all M rows of activations.
template <typename Policy, int R, int M, bool kSplit>
void few_rows(const Product& p, const Policy& policy, int64_t n, float* scratch) {
  RowScales scales[R];
  for (int r = 0; r < R; ++r) {
    scales[r] = p.expand_row(n + r, scratch + r * 2 * p.scale_room());
  }
  const Direct<Policy> source{policy, p.w.weight + n * p.w.row_bytes, p.w.row_bytes, p.w.columns,
                              p.w.row_bytes / p.steps};
  tile<Policy::kVectors, R, M, kSplit>(source, p.lanes, scales, p.steps, p.groups, p.x, 0, p.out + n, p.stride);
}

template <int kVectors, int R, bool kSplit>
void all_rows(const Product& p, const Decoded<kVectors>& source, const RowScales* scales, int64_t m, int64_t count,
              float* out) {
  auto go = [&](auto rows) {
    tile<kVectors, R, decltype(rows)::value, kSplit>(source, p.lanes, scales, p.steps, p.groups, p.x, m, out, p.stride);
  };
  switch (count) {
    case 1: return go(std::integral_constant<int, 1>{});
    case 2: return go(std::integral_constant<int, 2>{});
    case 3: return go(std::integral_constant<int, 3>{});
    case 4: return go(std::integral_constant<int, 4>{});
    case 5: return go(std::integral_constant<int, 5>{});
    default: return go(std::integral_constant<int, kTileRows16>{});
  }
}

// Decoded weight rows n .. n + count with all rows of activations.
template <int kVectors, bool kSplit>
void multiply(const Product& p, const __m512i* decoded, const RowScales* scales, int64_t n, int64_t count) {
  const int64_t row_vectors = p.steps * kVectors;
  const int64_t tiles = (p.x.rows + kTileRows16 - 1) / kTileRows16, most = (p.x.rows + tiles - 1) / tiles;
  for (int64_t m = 0; m < p.x.rows; m += most) {
    const int64_t rows = p.x.rows - m < most ? p.x.rows - m : most;
    for (int64_t r = 0; r < count; r += 2) {
      const Decoded<kVectors> source{decoded + r * row_vectors, row_vectors};
      if (r + 2 <= count) {
        all_rows<kVectors, 2, kSplit>(p, source, scales + r, m, rows, p.out + n + r);
      } else {
        all_rows<kVectors, 1, kSplit>(p, source, scales + r, m, rows, p.out + n + r);
      }
    }
  }
}

template <typename Policy>
void decode_row(const Product& p, const Policy& policy, int64_t n, __m512i* out) {
  const Direct<Policy> source{policy, p.w.weight + n * p.w.row_bytes, p.w.row_bytes, p.w.columns,
                              p.w.row_bytes / p.steps};
  const int64_t whole = source.whole_steps(p.steps);
  for (int64_t step = 0; step < whole; ++step) {
    source.template decode<true>(0, step, out + step * Policy::kVectors);
  }
  if (whole < p.steps) {
    source.template decode<false>(0, whole, out + whole * Policy::kVectors);
  }
}

template <typename Policy, int M, bool kSplit>
void direct_product(const Product& p, int64_t begin, int64_t end) {
  const Policy policy(p.w);
  auto* scratch = static_cast<float*>(__builtin_alloca(4 * p.scale_room() * sizeof(float)));
  int64_t n = begin;
  for (; n + 2 <= end; n += 2) {
    few_rows<Policy, 2, M, kSplit>(p, policy, n, scratch);
  }
  if (n < end) {
    few_rows<Policy, 1, M, kSplit>(p, policy, n, scratch);
  }
}

template <typename Policy, bool kSplit>
void decoded_product(const Product& p, int64_t begin, int64_t end) {
  const Policy policy(p.w);
  constexpr int64_t kMost = 32;
  const int64_t row_bytes = p.steps * Policy::kVectors * 64, fit = kDecodedBytes / row_bytes / 2 * 2;
  const int64_t block = fit < 2 ? 2 : fit < kMost ? fit : kMost;
  auto* decoded = static_cast<__m512i*>(__builtin_alloca_with_align(block * row_bytes, 512));
  auto* scratch = static_cast<float*>(__builtin_alloca(block * 2 * p.scale_room() * sizeof(float)));
  RowScales scales[kMost];
  for (int64_t n = begin; n < end; n += block) {
    const int64_t count = end - n < block ? end - n : block;
    for (int64_t r = 0; r < count; ++r) {
      decode_row(p, policy, n + r, decoded + r * p.steps * Policy::kVectors);
      scales[r] = p.expand_row(n + r, scratch + r * 2 * p.scale_room());
    }
    multiply<Policy::kVectors, kSplit>(p, decoded, scales, n, count);
  }
}

template <typename Policy, bool kSplit>
void product(const Product& p, int64_t begin, int64_t end) {
  switch (p.x.rows) {
    case 1: return direct_product<Policy, 1, kSplit>(p, begin, end);
    case 2: return direct_product<Policy, 2, kSplit>(p, begin, end);
    case 3: return direct_product<Policy, 3, kSplit>(p, begin, end);
    default: return decoded_product<Policy, kSplit>(p, begin, end);
  }
}

inline void quantized_matmul(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                             int64_t end) {
  with_policy(w, [&](auto* policy) {
    using Policy = std::remove_pointer_t<decltype(policy)>;
    const Product p{w, x, LaneScales(w.group, Policy::kValues), w.columns / w.group, steps_of<Policy>(w), out, stride};
    return x.low == nullptr ? product<Policy, false>(p, begin, end) : product<Policy, true>(p, begin, end);
  });
}

inline constexpr QuantizedKernels quantized_kernels = {
    prepared_bytes, operand, prepare, quantized_matmul, quantized_matmul_t, dequantize_row,
};

}  // namespace umlm::UNIT
