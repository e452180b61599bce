// Quantized products in plain C++ that compilers vectorize: for every instruction set without kernels of its own.
//
// A piece of a weight row is decoded to float32 integers, multiplied with all rows of activations, and the sums over
// a group are scaled.

#include <cstdint>
#include <cstring>

namespace umlm::UNIT {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float f16_to_float(uint16_t half) {
  uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  // the exponent is rebased by a multiplication, which makes subnormals right too
  float value = bits_to_float(rest << 13) * 0x1p112f;
  if (rest >= 0x7c00) {
    value = bits_to_float(0x7f800000u | (rest & 0x3ff) << 13);
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits_to_float(bits | sign);
}

inline float e4m3_to_float(uint8_t code) {
  float value = bits_to_float(uint32_t(code & 0x7f) << 20) * 0x1p120f;
  return code & 0x80 ? -value : value;
}

inline float e8m0_to_float(uint8_t code) { return bits_to_float(code == 0 ? 1u << 22 : uint32_t(code) << 23); }

inline float stored(const uint8_t* base, Type type, int64_t at) {
  if (type == Type::f32) {
    float value;
    std::memcpy(&value, base + 4 * at, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, base + 2 * at, 2);
  return type == Type::f16 ? f16_to_float(half) : bits_to_float(uint32_t(half) << 16);
}

inline float scale_of(const QuantizedMatrix& w, int64_t at) {
  switch (w.layout) {
    case Layout::mxfp4:
    case Layout::mxfp8: return e8m0_to_float(w.scales[at]);
    case Layout::nvfp4: return e4m3_to_float(w.scales[at]);
    default: return stored(w.scales, w.scale_type, at);
  }
}

// 8 values of `bits` bits each, from as many bytes.
template <int kBits>
inline void fields(const uint8_t* bytes, float* out) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, kBits);
  for (int i = 0; i < 8; ++i) {
    out[i] = static_cast<float>(static_cast<int>(word >> (i * kBits) & ((1 << kBits) - 1)));
  }
}

inline constexpr float kE2M1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};

// `count` values of a row from `first` on; both are multiples of 16.
inline void decode(const QuantizedMatrix& w, const uint8_t* row, int64_t first, int count, float* out) {
  auto all = [&](auto function, int bits) {
    for (int i = 0; i < count; i += 8) {
      function(row + (first + i) * bits / 8, out + i);
    }
  };
  switch (w.layout) {
    case Layout::affine2: return all(fields<2>, 2);
    case Layout::affine3: return all(fields<3>, 3);
    case Layout::affine4: return all(fields<4>, 4);
    case Layout::affine5: return all(fields<5>, 5);
    case Layout::affine6: return all(fields<6>, 6);
    case Layout::affine8:
      for (int i = 0; i < count; ++i) out[i] = row[first + i];
      return;
    case Layout::mxfp8:
      for (int i = 0; i < count; ++i) out[i] = e4m3_to_float(row[first + i]);
      return;
    case Layout::mxfp4:
    case Layout::nvfp4:
      for (int i = 0; i < count; i += 2) {
        uint8_t byte = row[(first + i) / 2];
        out[i] = kE2M1[byte & 15];
        out[i + 1] = kE2M1[byte >> 4];
      }
      return;
  }
}

inline int64_t prepared_bytes(const QuantizedMatrix& w) { return w.columns / w.group * sizeof(float); }

inline Operand operand(const QuantizedMatrix& w, const float* values, int64_t rows, bool, void* scratch) {
  return {rows, w.columns, values, nullptr, nullptr, static_cast<float*>(scratch), 0};
}

inline void prepare(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end) {
  const int64_t groups = w.columns / w.group;
  for (int64_t at = begin * groups; at < end * groups; ++at) {
    float sum = 0;
    for (int i = 0; i < w.group; ++i) {
      sum += x.values[at * w.group + i];
    }
    const_cast<float*>(x.sums)[at] = sum;
  }
}

inline void quantized_matmul(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                             int64_t end) {
  const int64_t groups = w.columns / w.group;
  const int group = w.group;
  alignas(64) float values[128];
  for (int64_t n = begin; n < end; ++n) {
    const uint8_t* row = w.weight + n * w.row_bytes;
    for (int64_t m = 0; m < x.rows; ++m) {
      out[m * stride + n] = 0;
    }
    for (int64_t g = 0; g < groups; ++g) {
      decode(w, row, g * group, group, values);
      const float scale = scale_of(w, n * groups + g);
      const float bias = w.biases == nullptr ? 0 : stored(w.biases, w.scale_type, n * groups + g);
      for (int64_t m = 0; m < x.rows; ++m) {
        const float* row_values = x.values + m * x.columns + g * group;
        float sum = 0;
        for (int i = 0; i < group; ++i) {
          sum += values[i] * row_values[i];
        }
        out[m * stride + n] += scale * sum + bias * x.sums[m * groups + g];
      }
    }
  }
}

inline constexpr QuantizedKernels quantized_kernels = {prepared_bytes, operand, prepare, quantized_matmul};

}  // namespace umlm::UNIT
