// Quantized rows in float32, and the transposed product, for every unit. Needs lanes.h.

#include "units/quantized_decode.h"
#include "units/quantized_blocks.h"

namespace umlm::UNIT {

// Values [first, first + count) of row n; both are whole groups or blocks.
inline void decode(const QuantizedMatrix& w, int64_t n, int64_t first, int64_t count, float* __restrict out) {
  const uint8_t* row = w.weight + n * w.row_bytes;
  if (is_blocks(w.layout)) {
    const BlockShape shape = block_shape(w.layout);
    for (int64_t i = 0; i < count; i += shape.values) {
      decode_block(w.layout, row + (first + i) / shape.values * shape.bytes, out + i);
    }
    return;
  }
  for (int64_t i = 0; i < count; i += w.group) {
    decode_group(w, row, n, (first + i) / w.group, out + i);
  }
}

inline void dequantize_row(const QuantizedMatrix& w, int64_t n, float* out) { decode(w, n, 0, w.columns, out); }

// Columns of a piece and rows of weight that are decoded at a time.
inline constexpr int64_t kTransposedColumns = 256;
inline constexpr int64_t kTransposedRows = 8;

// out[k] += sum over 8 rows of x[r] decoded[r, k]
inline void add_rows(const float* __restrict decoded, const float* __restrict x, int64_t count,
                     float* __restrict out) {
  for (int64_t k = 0; k < count; k += kLanes) {
    Lanes sum = load<Type::f32>(out, k);
    for (int r = 0; r < kTransposedRows; ++r) {
      sum += x[r] * load<Type::f32>(decoded + r * kTransposedColumns, k);
    }
    std::memcpy(out + k, &sum, sizeof(sum));
  }
}

inline void add_piece(const QuantizedMatrix& w, const float* x, int64_t rows, int64_t n, int64_t first, int64_t count,
                      float* decoded, float* out) {
  const int64_t present = w.rows - n < kTransposedRows ? w.rows - n : kTransposedRows;
  for (int64_t r = 0; r < present; ++r) {
    decode(w, n + r, first, count, decoded + r * kTransposedColumns);
  }
  for (int64_t r = present; r < kTransposedRows; ++r) {
    std::memset(decoded + r * kTransposedColumns, 0, count * sizeof(float));
  }
  for (int64_t m = 0; m < rows; ++m) {
    float factors[kTransposedRows] = {};
    std::memcpy(factors, x + m * w.rows + n, present * sizeof(float));
    add_rows(decoded, factors, count, out + m * w.columns + first);
  }
}

inline void quantized_matmul_t(const QuantizedMatrix& w, const float* x, int64_t rows, float* out, int64_t begin,
                               int64_t end) {
  alignas(64) float decoded[kTransposedRows * kTransposedColumns];
  for (int64_t first = begin; first < end; first += kTransposedColumns) {
    const int64_t count = end - first < kTransposedColumns ? end - first : kTransposedColumns;
    for (int64_t m = 0; m < rows; ++m) {
      std::memset(out + m * w.columns + first, 0, count * sizeof(float));
    }
    for (int64_t n = 0; n < w.rows; n += kTransposedRows) {
      add_piece(w, x, rows, n, first, count, decoded, out);
    }
  }
}

}  // namespace umlm::UNIT
