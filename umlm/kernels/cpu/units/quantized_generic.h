// Quantized products in float32: pieces of weight rows are decoded, then multiplied with all rows of activations.
// Needs lanes.h, rows_generic.h and quantized_values.h.

namespace umlm::UNIT {

// Columns of a piece and rows of weight that are decoded at a time: they stay in the second cache.
inline constexpr int64_t kDecodedColumns = 1024;
inline constexpr int64_t kDecodedRows = 16;

inline int64_t prepared_bytes(const QuantizedMatrix& w) { return w.columns * sizeof(float); }

inline Operand operand(const QuantizedMatrix& w, const void* source, Type type, int, int64_t rows, void* scratch) {
  const auto* values = static_cast<const float*>(type == Type::f32 ? source : scratch);
  return {.rows = rows, .columns = w.columns, .source = source, .source_type = type, .values = values};
}

inline void prepare(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end) {
  if (x.source_type != Type::f32) {
    widen(element(x.source, x.source_type, begin * w.columns), x.source_type, (end - begin) * w.columns,
          const_cast<float*>(x.values) + begin * w.columns);
  }
}

// out[i * stride + r] += the product of x's row i with w's row r, over `count` columns; R is 4.
template <int M>
inline void tile(const float* w, const float* x, int64_t x_stride, int64_t count, float* out, int64_t stride) {
  Lanes sums[M][4] = {};
  for (int64_t k = 0; k < count; k += kLanes) {
    Lanes weight[4];
    for (int r = 0; r < 4; ++r) {
      weight[r] = load<Type::f32>(w + r * kDecodedColumns, k);
    }
    for (int i = 0; i < M; ++i) {
      const Lanes values = load<Type::f32>(x + i * x_stride, k);
      for (int r = 0; r < 4; ++r) {
        sums[i][r] += weight[r] * values;
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    alignas(64) float totals[16];
    sum_lanes(sums[i][0], sums[i][1], sums[i][2], sums[i][3], totals);
    asm volatile("" : : "r"(totals) : "memory");  // no sum here may mix with those that follow
    for (int r = 0; r < 4; ++r) {
      out[i * stride + r] += totals[r];
    }
  }
}

#if defined(__AVX512F__) || defined(__ARM_NEON)
inline constexpr int kTile = 5;
#else
inline constexpr int kTile = 2;
#endif

// One decoded piece of up to kDecodedRows rows with all rows of x. sums is [rows of x, kDecodedRows].
inline void multiply(const float* decoded, const float* x, int64_t x_rows, int64_t x_stride, int64_t count,
                     int64_t outputs, float* sums) {
  int64_t m = 0;
  for (; m + kTile <= x_rows; m += kTile) {
    for (int64_t r = 0; r < outputs; r += 4) {
      tile<kTile>(decoded + r * kDecodedColumns, x + m * x_stride, x_stride, count, sums + m * kDecodedRows + r,
                  kDecodedRows);
    }
  }
  for (; m < x_rows; ++m) {
    for (int64_t r = 0; r < outputs; r += 4) {
      tile<1>(decoded + r * kDecodedColumns, x + m * x_stride, x_stride, count, sums + m * kDecodedRows + r,
              kDecodedRows);
    }
  }
}

// Rows of x that are multiplied with the decoded rows before more are decoded.
inline constexpr int64_t kRowsOfX = 512;

// Weight rows [n, n + outputs) with the rows [m, m + count) of x.
inline void block_of_rows(const QuantizedMatrix& w, const Operand& x, int64_t n, int64_t outputs, int64_t m,
                          int64_t rows, float* decoded, float* sums, float* out, int64_t stride) {
  std::memset(sums, 0, rows * kDecodedRows * sizeof(float));
  for (int64_t first = 0; first < w.columns; first += kDecodedColumns) {
    const int64_t count = w.columns - first < kDecodedColumns ? w.columns - first : kDecodedColumns;
    for (int64_t r = 0; r < outputs; ++r) {
      decode(w, n + r, first, count, decoded + r * kDecodedColumns);
    }
    for (int64_t r = outputs; r % 4 != 0; ++r) {  // the last tile's rows that do not exist
      std::memset(decoded + r * kDecodedColumns, 0, count * sizeof(float));
    }
    multiply(decoded, x.values + m * x.columns + first, rows, x.columns, count, outputs, sums);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t r = 0; r < outputs; ++r) {
      out[(m + i) * stride + n + r] = sums[i * kDecodedRows + r];
    }
  }
}

inline void quantized_matmul(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                             int64_t end) {
  alignas(64) float decoded[kDecodedRows * kDecodedColumns];
  alignas(64) float sums[kRowsOfX * kDecodedRows];
  for (int64_t n = begin; n < end; n += kDecodedRows) {
    const int64_t outputs = end - n < kDecodedRows ? end - n : kDecodedRows;
    for (int64_t m = 0; m < x.rows; m += kRowsOfX) {
      const int64_t rows = x.rows - m < kRowsOfX ? x.rows - m : kRowsOfX;
      block_of_rows(w, x, n, outputs, m, rows, decoded, sums, out, stride);
    }
  }
}

inline constexpr QuantizedKernels quantized_kernels = {
    prepared_bytes, operand, prepare, quantized_matmul, quantized_matmul_t, dequantize_row,
};

}  // namespace umlm::UNIT
