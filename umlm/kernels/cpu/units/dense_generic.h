// Dense products: vectors run along the columns of x and of the row-major weight, so that one row and many sum alike.
//
// A tile is kTileRows rows of x times 4 of weight, an accumulator each. Few rows take the weight as it lies; many
// take it in panels that fit the second cache, widened once, and carry the accumulators from panel to panel.

namespace umlm::UNIT {

#if defined(__AVX512F__) || defined(__ARM_NEON)
inline constexpr int kTileRows = 6;  // 24 accumulators of 32 registers
#else
inline constexpr int kTileRows = 3;
#endif
inline constexpr int kTileOutputs = 4;
inline constexpr int64_t kFewRows = 2 * kTileRows;
inline constexpr int64_t kPanelColumns = 1024;

// float32 operands and sums; the weight is widened as it is loaded.
template <Type kType>
struct Widened {
  using Vector = Lanes;
  using Packed = float;
  static constexpr Type kX = Type::f32, kWeight = kType;
  static constexpr int kStep = kLanes;
  static Vector x(const void* row, int64_t at) { return load<Type::f32>(row, at); }
  static Vector weight(const void* row, int64_t at) { return load<kType>(row, at); }
  static Vector x_part(const void* row, int64_t at, int64_t count) { return load_part<Type::f32>(row, at, count); }
  static Vector weight_part(const void* row, int64_t at, int64_t count) { return load_part<kType>(row, at, count); }
  static Lanes add_product(Lanes sum, Vector a, Vector b) { return sum + a * b; }
  static Vector packed(const Packed* row, int64_t at) { return load<Type::f32>(row, at); }
  static void pack(Packed* row, int64_t at, Vector vector) { __builtin_memcpy(row + at, &vector, sizeof(vector)); }
};

#if defined(__AVX512BF16__)
// bf16 operands, products in pairs.
struct Pairs {
  using Vector = __m512i;
  using Packed = uint16_t;
  static constexpr int kStep = 32;
  static constexpr Type kX = Type::bf16, kWeight = Type::bf16;
  static Vector x(const void* row, int64_t at) { return _mm512_loadu_si512(static_cast<const uint16_t*>(row) + at); }
  static Vector weight(const void* row, int64_t at) { return x(row, at); }
  static Vector x_part(const void* row, int64_t at, int64_t count) {
    return _mm512_maskz_loadu_epi16((1u << count) - 1, static_cast<const uint16_t*>(row) + at);
  }
  static Vector weight_part(const void* row, int64_t at, int64_t count) { return x_part(row, at, count); }
  static Lanes add_product(Lanes sum, Vector a, Vector b) {
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  static Vector packed(const Packed* row, int64_t at) { return x(row, at); }
  static void pack(Packed* row, int64_t at, Vector vector) { _mm512_storeu_si512(row + at, vector); }
};
#endif

// Bytes ahead of the current ones that are asked for from memory, where rows are longer than that.
inline constexpr int64_t kDenseAhead = 4096;

template <typename Policy, int M>
void tile_few(const DenseProduct& p, int64_t row, int64_t output, int64_t last, float* out) {
  const int64_t whole = p.columns / Policy::kStep * Policy::kStep, rest = p.columns - whole;
  const int64_t size = Policy::kWeight == Type::f32 ? 4 : 2, ahead = 4 * p.columns * size;
  const int64_t distance = ahead < 4 * kDenseAhead ? ahead : kDenseAhead;
  const uint8_t *x[M], *w[kTileOutputs];
  Lanes sums[M][kTileOutputs] = {};
  for (int i = 0; i < M; ++i) {
    x[i] = element(p.x, Policy::kX, (row + i) * p.columns);
  }
  for (int r = 0; r < kTileOutputs; ++r) {
    w[r] = element(p.weight, Policy::kWeight, (output + r < last ? output + r : last) * p.columns);
  }
  for (int64_t k = 0; k < whole; k += Policy::kStep) {
    typename Policy::Vector weights[kTileOutputs];
    for (int r = 0; r < kTileOutputs; ++r) {
      __builtin_prefetch(w[r] + k * size + distance);
      weights[r] = Policy::weight(w[r], k);
    }
    for (int i = 0; i < M; ++i) {
      const auto values = Policy::x(x[i], k);
      for (int r = 0; r < kTileOutputs; ++r) {
        sums[i][r] = Policy::add_product(sums[i][r], values, weights[r]);
      }
    }
  }
  if (rest > 0) {
    for (int i = 0; i < M; ++i) {
      const auto values = Policy::x_part(x[i], whole, rest);
      for (int r = 0; r < kTileOutputs; ++r) {
        sums[i][r] = Policy::add_product(sums[i][r], values, Policy::weight_part(w[r], whole, rest));
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    sum_lanes(sums[i][0], sums[i][1], sums[i][2], sums[i][3], out + i * kBlockOutputs);
  }
}

// Call tile<M>(first row) for the last rows, M or fewer.
template <int M, typename Tile>
inline void last_tile(int64_t at, int64_t rest, Tile& tile) {
  if (rest == M) {
    tile.template operator()<M>(at);
  } else if constexpr (M > 1) {
    last_tile<M - 1>(at, rest, tile);
  }
}

// Call tile<M>(first row) for `rows` rows in tiles of kTileRows and a smaller one.
template <typename Tile>
inline void in_tiles(int64_t rows, Tile tile) {
  int64_t at = 0;
  for (; at + kTileRows <= rows; at += kTileRows) {
    tile.template operator()<kTileRows>(at);
  }
  last_tile<kTileRows - 1>(at, rows - at, tile);
}

template <typename Policy>
void block_few(const DenseProduct& p, int64_t row, int64_t rows, int64_t output, int64_t outputs, float* out) {
  for (int64_t n = 0; n < outputs; n += kTileOutputs) {
    in_tiles(rows, [&]<int M>(int64_t at) {
      tile_few<Policy, M>(p, row + at, output + n, output + outputs - 1, out + at * kBlockOutputs + n);
    });
  }
}

// The weight's rows from `output` on and columns [first, first + count), widened; what lacks is 0.
template <typename Policy>
void pack_panel(const DenseProduct& p, int64_t output, int64_t outputs, int64_t first, int64_t count,
                typename Policy::Packed* panel) {
  const int64_t whole = count / Policy::kStep * Policy::kStep;
  for (int64_t n = 0; n < outputs; ++n) {
    const uint8_t* row = element(p.weight, Policy::kWeight, (output + n) * p.columns + first);
    auto* packed = panel + n * kPanelColumns;
    for (int64_t k = 0; k < whole; k += Policy::kStep) {
      Policy::pack(packed, k, Policy::weight(row, k));
    }
    if (whole < count) {
      Policy::pack(packed, whole, Policy::weight_part(row, whole, count - whole));
    }
  }
}

// Columns [first, first + count) of x times a panel: sums go on from `carried`, and from there to out after the last.
template <typename Policy, int M>
void tile_many(const DenseProduct& p, const typename Policy::Packed* panel, int64_t row, int64_t first, int64_t count,
               Lanes* carried, float* out) {
  const int64_t whole = count / Policy::kStep * Policy::kStep;
  Lanes sums[M][kTileOutputs] = {};
  const uint8_t* x[M];
  for (int i = 0; i < M; ++i) {
    x[i] = element(p.x, Policy::kX, (row + i) * p.columns + first);
  }
  if (first > 0) {
    __builtin_memcpy(sums, carried, sizeof(sums));
  }
  for (int64_t k = 0; k < whole; k += Policy::kStep) {
    typename Policy::Vector weights[kTileOutputs];
    for (int r = 0; r < kTileOutputs; ++r) {
      weights[r] = Policy::packed(panel + r * kPanelColumns, k);
    }
    for (int i = 0; i < M; ++i) {
      const auto values = Policy::x(x[i], k);
      for (int r = 0; r < kTileOutputs; ++r) {
        sums[i][r] = Policy::add_product(sums[i][r], values, weights[r]);
      }
    }
  }
  if (whole < count) {
    for (int i = 0; i < M; ++i) {
      const auto values = Policy::x_part(x[i], whole, count - whole);
      for (int r = 0; r < kTileOutputs; ++r) {
        sums[i][r] = Policy::add_product(sums[i][r], values, Policy::packed(panel + r * kPanelColumns, whole));
      }
    }
  }
  if (first + count < p.columns) {
    __builtin_memcpy(carried, sums, sizeof(sums));
  } else {
    for (int i = 0; i < M; ++i) {
      sum_lanes(sums[i][0], sums[i][1], sums[i][2], sums[i][3], out + i * kBlockOutputs);
    }
  }
}

template <typename Policy>
void block_many(const DenseProduct& p, int64_t row, int64_t rows, int64_t output, int64_t outputs, float* out) {
  alignas(64) typename Policy::Packed panel[kBlockOutputs * kPanelColumns];
  alignas(64) Lanes carried[kBlockRows * kBlockOutputs];
  const int64_t spare = (outputs + kTileOutputs - 1) / kTileOutputs * kTileOutputs - outputs;
  __builtin_memset(panel + outputs * kPanelColumns, 0, spare * kPanelColumns * sizeof(panel[0]));
  for (int64_t first = 0; first < p.columns; first += kPanelColumns) {
    const int64_t count = p.columns - first < kPanelColumns ? p.columns - first : kPanelColumns;
    pack_panel<Policy>(p, output, outputs, first, count, panel);
    in_tiles(rows, [&]<int M>(int64_t at) {
      for (int64_t n = 0; n < outputs; n += kTileOutputs) {
        // a tile's sums lie together: kTileOutputs each of M rows
        tile_many<Policy, M>(p, panel + n * kPanelColumns, row + at, first, count,
                             carried + at * kBlockOutputs + n * M, out + at * kBlockOutputs + n);
      }
    });
  }
}

template <typename Policy>
void block_sums(const DenseProduct& p, int64_t row, int64_t rows, int64_t output, int64_t outputs, float* out) {
  rows <= kFewRows || p.columns == 0 ? block_few<Policy>(p, row, rows, output, outputs, out)
                                      : block_many<Policy>(p, row, rows, output, outputs, out);
}

inline Type operand_type([[maybe_unused]] Type x, [[maybe_unused]] Type weight) {
#if defined(__AVX512BF16__)
  if (x == Type::bf16 && weight == Type::bf16) return Type::bf16;
#endif
  return Type::f32;
}

// Bias and the output's dtype; apart from the sums, so that no sum is reordered with a bias.
inline __attribute__((noinline)) void finish(const DenseProduct& p, int64_t row, int64_t rows, int64_t output,
                                             int64_t outputs, float* sums) {
  float bias[kBlockOutputs] = {};
  if (p.bias != nullptr) {
    widen(element(p.bias, p.bias_type, output), p.bias_type, outputs, bias);
  }
  for (int64_t i = 0; i < rows; ++i) {
    float* values = sums + i * kBlockOutputs;
    if (p.bias != nullptr) {
      for (int64_t n = 0; n < outputs; ++n) values[n] += bias[n];
    }
    const void* at = element(p.out, p.out_type, (row + i) * p.outputs + output);
    narrow(values, p.out_type, outputs, const_cast<void*>(at));
  }
}

inline void dense_block(const DenseProduct& p, int64_t row, int64_t output) {
  alignas(64) float sums[kBlockRows * kBlockOutputs];
  const int64_t rows = p.rows - row < kBlockRows ? p.rows - row : kBlockRows;
  const int64_t outputs = p.outputs - output < kBlockOutputs ? p.outputs - output : kBlockOutputs;
  switch (p.weight_type) {
    case Type::f32: block_sums<Widened<Type::f32>>(p, row, rows, output, outputs, sums); break;
    case Type::f16: block_sums<Widened<Type::f16>>(p, row, rows, output, outputs, sums); break;
    case Type::bf16:
#if defined(__AVX512BF16__)
      if (p.x_type == Type::bf16) {
        block_sums<Pairs>(p, row, rows, output, outputs, sums);
        break;
      }
#endif
      block_sums<Widened<Type::bf16>>(p, row, rows, output, outputs, sums);
  }
  finish(p, row, rows, output, outputs, sums);
}

inline constexpr DenseKernels dense_kernels = {operand_type, dense_block};

}  // namespace umlm::UNIT
