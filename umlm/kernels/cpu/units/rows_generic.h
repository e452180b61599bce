// Norms, activations and dtypes in loops that compilers vectorize, over pieces of a row that stay in the first cache.

namespace umlm::UNIT {

inline constexpr int64_t kPiece = 512;

inline uint16_t to_f16_bits(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value), magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  // adding a half puts a subnormal's unit at the last place, so that the addition rounds it
  const uint32_t small = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000;
  uint32_t half = magnitude < 0x38800000 ? small : normal;
  half = magnitude >= 0x47800000 ? 0x7c00 : half;
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

inline uint16_t to_bf16_bits(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

template <Type kType>
void widen_as(const void* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes lanes = load<kType>(from, i);
    __builtin_memcpy(to + i, &lanes, sizeof(lanes));
  }
  if (i < count) {
    Lanes lanes = load_part<kType>(from, i, count - i);
    __builtin_memcpy(to + i, &lanes, (count - i) * sizeof(float));
  }
}

inline void widen(const void* from, Type type, int64_t count, float* to) {
  switch (type) {
    case Type::f32: return widen_as<Type::f32>(from, count, to);
    case Type::f16: return widen_as<Type::f16>(from, count, to);
    case Type::bf16: return widen_as<Type::bf16>(from, count, to);
  }
}

inline void narrow_f16(const float* from, int64_t count, uint16_t* out) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
  }
#endif
  for (; i < count; ++i) {
    out[i] = to_f16_bits(from[i]);
  }
}

inline void narrow(const float* from, Type type, int64_t count, void* to) {
  if (type == Type::f32) {
    __builtin_memmove(to, from, count * sizeof(float));
  } else if (type == Type::f16) {
    narrow_f16(from, count, static_cast<uint16_t*>(to));
  } else {
    auto* out = static_cast<uint16_t*>(to);
    for (int64_t i = 0; i < count; ++i) {
      out[i] = to_bf16_bits(from[i]);
    }
  }
}

inline const uint8_t* element(const void* base, Type type, int64_t at) {
  return static_cast<const uint8_t*>(base) + at * (type == Type::f32 ? 4 : 2);
}

// Call work(first, count, values) on float32 pieces of a row.
template <typename Work>
void in_pieces(const void* row, Type type, int64_t columns, Work&& work) {
  alignas(64) float values[kPiece];
  for (int64_t first = 0; first < columns; first += kPiece) {
    const int64_t count = columns - first < kPiece ? columns - first : kPiece;
    widen(element(row, type, first), type, count, values);
    work(first, count, values);
  }
}

inline float mean_square(const void* row, Type type, int64_t columns) {
  float total = 0;
  in_pieces(row, type, columns, [&](int64_t, int64_t count, const float* values) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      sum += values[i] * values[i];
    }
    total += sum;
  });
  return total / static_cast<float>(columns);
}

inline void rms_norm(const void* x, Type type, const void* weight, Type weight_type, float offset, float eps,
                     int64_t rows, int64_t columns, void* out) {
  alignas(64) float weights[kPiece];
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* values_at = element(x, type, row * columns);
    uint8_t* out_at = const_cast<uint8_t*>(element(out, type, row * columns));
    const float scale = 1.0f / __builtin_sqrtf(mean_square(values_at, type, columns) + eps);
    in_pieces(values_at, type, columns, [&](int64_t first, int64_t count, float* values) {
      if (weight == nullptr) {
        for (int64_t i = 0; i < count; ++i) values[i] *= scale;
      } else {
        widen(element(weight, weight_type, first), weight_type, count, weights);
        for (int64_t i = 0; i < count; ++i) values[i] = values[i] * scale * (offset + weights[i]);
      }
      narrow(values, type, count, const_cast<uint8_t*>(element(out_at, type, first)));
    });
  }
}

inline float largest(const void* row, Type type, float scale, int64_t columns) {
  float top = -__builtin_inff();
  in_pieces(row, type, columns, [&](int64_t, int64_t count, const float* values) {
    for (int64_t i = 0; i < count; ++i) top = values[i] * scale > top ? values[i] * scale : top;
  });
  return top;
}

// Call work(first, count, weights) on pieces of exp(scale x - top).
template <typename Work>
void in_weights(const void* row, Type type, float scale, float top, int64_t columns, Work&& work) {
  in_pieces(row, type, columns, [&](int64_t first, int64_t count, float* values) {
    for (int64_t i = 0; i < count; ++i) values[i] = exp(values[i] * scale - top);
    work(first, count, values);
  });
}

inline void softmax(const void* x, Type type, float scale, int64_t rows, int64_t columns, void* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t *from = element(x, type, row * columns), *to = element(out, type, row * columns);
    const float top = largest(from, type, scale, columns);
    float total = 0;
    in_weights(from, type, scale, top, columns, [&](int64_t, int64_t count, const float* weights) {
      float sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += weights[i];
      total += sum;
    });
    const float share = 1.0f / total;
    in_weights(from, type, scale, top, columns, [&](int64_t first, int64_t count, float* weights) {
      for (int64_t i = 0; i < count; ++i) weights[i] *= share;
      narrow(weights, type, count, const_cast<uint8_t*>(element(to, type, first)));
    });
  }
}

inline void apply(Activation f, int64_t count, float* values) {
  switch (f) {
    case Activation::silu:
      for (int64_t i = 0; i < count; ++i) values[i] *= sigmoid(values[i]);
      return;
    case Activation::gelu:
      for (int64_t i = 0; i < count; ++i) values[i] *= 0.5f + 0.5f * erf(values[i] * 0.70710678118654752f);
      return;
    case Activation::gelu_tanh:
      // 1 + tanh(z) = 2 sigmoid(2 z)
      for (int64_t i = 0; i < count; ++i) {
        const float v = values[i];
        values[i] = v * sigmoid(1.5957691216057308f * v * (1.0f + 0.044715f * v * v));
      }
      return;
    case Activation::relu:
      for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0 ? 0 : values[i];
      return;
    case Activation::relu2:
      for (int64_t i = 0; i < count; ++i) {
        const float v = values[i] < 0 ? 0 : values[i];
        values[i] = v * v;
      }
      return;
  }
}

inline void activate(Activation f, const void* gate, Type type, const void* up, Type up_type, int64_t count,
                     void* out) {
  alignas(64) float factors[kPiece];
  in_pieces(gate, type, count, [&](int64_t first, int64_t size, float* values) {
    apply(f, size, values);
    if (up != nullptr) {
      widen(element(up, up_type, first), up_type, size, factors);
      for (int64_t i = 0; i < size; ++i) values[i] *= factors[i];
    }
    narrow(values, type, size, const_cast<uint8_t*>(element(out, type, first)));
  });
}

inline constexpr RowKernels row_kernels = {widen, narrow, rms_norm, softmax, activate};

}  // namespace umlm::UNIT
