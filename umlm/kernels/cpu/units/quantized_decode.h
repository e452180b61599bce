// Groups of MLX's layouts in float32, scales applied. Needs lanes.h.

#include <cstdint>
#include <cstring>

namespace umlm::UNIT {

inline float bits_to_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline uint16_t load16(const uint8_t* at) {
  uint16_t word;
  std::memcpy(&word, at, 2);
  return word;
}

inline float f16_to_float(uint16_t half) {
#if defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
#else
  uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  // the exponent is rebased by a multiplication, which makes subnormals right too
  float finite = bits_to_float(rest << 13) * 0x1p112f;
  return bits_to_float((rest >= 0x7c00 ? 0x7f800000u | rest << 13 : __builtin_bit_cast(uint32_t, finite)) | sign);
#endif
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
  uint16_t half = load16(base + 2 * at);
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

inline constexpr float kE2M1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};

// `count` values of `bits` bits each, a multiple of 16: scale * value + bias.
template <int kBits>
inline void fields(const uint8_t* __restrict bytes, int count, float scale, float bias, float* __restrict out) {
#if defined(__AVX2__)
  // lane j takes the two bytes that hold its bits
  alignas(16) int8_t from[32];
  alignas(32) int shift[8];
  for (int j = 0; j < 8; ++j) {
    from[4 * j] = static_cast<int8_t>(j * kBits / 8);
    from[4 * j + 1] = static_cast<int8_t>(j * kBits / 8 + 1);
    from[4 * j + 2] = from[4 * j + 3] = -1;
    shift[j] = j * kBits % 8;
  }
  const __m256i gather = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(shift));
  for (int i = 0; i < count; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i / 8 * kBits, kBits);
    __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<long long>(word)), gather);
    __m256i values = _mm256_and_si256(_mm256_srlv_epi32(spread, shifts), _mm256_set1_epi32((1 << kBits) - 1));
    __m256 scaled = _mm256_fmadd_ps(_mm256_cvtepi32_ps(values), _mm256_set1_ps(scale), _mm256_set1_ps(bias));
    _mm256_storeu_ps(out + i, scaled);
  }
#else
  for (int i = 0; i < count; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i / 8 * kBits, kBits);
    for (int j = 0; j < 8; ++j) {
      out[i + j] = scale * static_cast<float>(static_cast<int>(word >> (j * kBits) & ((1 << kBits) - 1))) + bias;
    }
  }
#endif
}

// `count` nibbles, the low one of a byte first: table[nibble].
inline void nibbles(const uint8_t* __restrict bytes, int count, const float* __restrict table, float* __restrict out) {
#if defined(__AVX512F__)
  const __m512 values = _mm512_loadu_ps(table);
  const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i words = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  for (int i = 0; i < count; i += 16) {
    __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i / 2));
    __m512i spread = _mm512_permutexvar_epi32(words, _mm512_castsi128_si512(eight));
    // a lane's own nibble is lowest, and the permutation looks at no more
    _mm512_storeu_ps(out + i, _mm512_permutexvar_ps(_mm512_srlv_epi32(spread, shifts), values));
  }
#else
  for (int i = 0; i < count / 2; ++i) {
    out[2 * i] = table[bytes[i] & 15];
    out[2 * i + 1] = table[bytes[i] >> 4];
  }
#endif
}

// `count` nibbles of an affine group.
inline void affine_nibbles(const uint8_t* __restrict bytes, int count, float scale, float bias, float* __restrict out) {
#if defined(__AVX512F__)
  alignas(64) float table[16];
  for (int i = 0; i < 16; ++i) table[i] = scale * static_cast<float>(i) + bias;
  nibbles(bytes, count, table, out);
#elif defined(__AVX2__)
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  for (int i = 0; i < count; i += 8) {
    int word;
    std::memcpy(&word, bytes + i / 2, 4);
    __m256i values = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(word), shifts), _mm256_set1_epi32(15));
    __m256 scaled = _mm256_fmadd_ps(_mm256_cvtepi32_ps(values), _mm256_set1_ps(scale), _mm256_set1_ps(bias));
    _mm256_storeu_ps(out + i, scaled);
  }
#else
  for (int i = 0; i < count / 2; ++i) {
    out[2 * i] = scale * static_cast<float>(bytes[i] & 15) + bias;
    out[2 * i + 1] = scale * static_cast<float>(bytes[i] >> 4) + bias;
  }
#endif
}

inline void integers8(const uint8_t* __restrict bytes, int count, float scale, float bias, float* __restrict out) {
  for (int i = 0; i < count; ++i) out[i] = scale * static_cast<float>(bytes[i]) + bias;
}

inline void small_floats(const uint8_t* __restrict bytes, int count, float scale, float* __restrict out) {
  float table[16];
  for (int i = 0; i < 16; ++i) table[i] = scale * kE2M1[i];
  nibbles(bytes, count, table, out);
}

// One group of row n, whose bytes begin at `row`.
inline void decode_group(const QuantizedMatrix& w, const uint8_t* row, int64_t n, int64_t g, float* out) {
  const int64_t first = g * w.group, at = n * (w.columns / w.group) + g;
  const int count = w.group;
  const float scale = scale_of(w, at);
  const float bias = w.biases == nullptr ? 0 : stored(w.biases, w.scale_type, at);
  switch (w.layout) {
    case Layout::affine2: return fields<2>(row + first / 4, count, scale, bias, out);
    case Layout::affine3: return fields<3>(row + first / 8 * 3, count, scale, bias, out);
    case Layout::affine4: return affine_nibbles(row + first / 2, count, scale, bias, out);
    case Layout::affine5: return fields<5>(row + first / 8 * 5, count, scale, bias, out);
    case Layout::affine6: return fields<6>(row + first / 8 * 6, count, scale, bias, out);
    case Layout::affine8:
      return integers8(row + first, count, scale, bias, out);
    case Layout::mxfp8:
      for (int i = 0; i < count; ++i) out[i] = scale * e4m3_to_float(row[first + i]);
      return;
    default: return small_floats(row + first / 2, count, scale, out);
  }
}

}  // namespace umlm::UNIT
