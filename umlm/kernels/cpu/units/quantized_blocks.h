// Values of ggml's blocks in float32, as they lie in a GGUF file. Needs quantized_decode.h.
// Source: ggml's block layouts (ggml-common.h).

namespace umlm::UNIT {

// e2m1, doubled so that they are whole
inline constexpr int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr int8_t kIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct BlockShape {
  int values, bytes;
};

inline BlockShape block_shape(Layout layout) {
  switch (layout) {
    case Layout::ggml_q4_0: return {32, 18};
    case Layout::ggml_q4_1: return {32, 20};
    case Layout::ggml_q5_0: return {32, 22};
    case Layout::ggml_q5_1: return {32, 24};
    case Layout::ggml_q8_0: return {32, 34};
    case Layout::ggml_iq4_nl: return {32, 18};
    case Layout::ggml_mxfp4: return {32, 17};
    case Layout::ggml_q2_k: return {256, 84};
    case Layout::ggml_q3_k: return {256, 110};
    case Layout::ggml_q4_k: return {256, 144};
    case Layout::ggml_q5_k: return {256, 176};
    case Layout::ggml_q6_k: return {256, 210};
    case Layout::ggml_iq4_xs: return {256, 136};
    default: return {0, 0};
  }
}

inline bool is_blocks(Layout layout) { return layout >= Layout::ggml_q4_0; }

inline uint32_t load32(const uint8_t* at) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  return word;
}

// 16 integers of 8 bits to scale * integer + bias.
#if defined(__AVX2__)
template <bool kSigned>
inline void scale16(__m128i bytes, float scale, float bias, float* out) {
  for (int i = 0; i < 2; ++i, bytes = _mm_unpackhi_epi64(bytes, bytes)) {
    __m256i wide = kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
    _mm256_storeu_ps(out + 8 * i, _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(scale), _mm256_set1_ps(bias)));
  }
}
using Sixteen = __m128i;
inline Sixteen load_bytes(const uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
inline Sixteen bits_of(Sixteen bytes, int shift, int mask) {
  return _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(static_cast<char>(mask)));
}
inline Sixteen shifted_up(Sixteen bytes, int shift) { return _mm_sll_epi16(bytes, _mm_cvtsi32_si128(shift)); }
inline Sixteen look_up(const int8_t* table, Sixteen index) { return _mm_shuffle_epi8(load_bytes(reinterpret_cast<const uint8_t*>(table)), index); }
// bit i of word in byte i
inline Sixteen spread_bits(uint32_t word) {
  const __m128i from = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m128i bit = _mm_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  __m128i bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(word)), from);
  return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bytes, bit), bit), _mm_set1_epi8(1));
}
#else
typedef uint8_t Sixteen __attribute__((vector_size(16)));
template <bool kSigned>
inline void scale16(Sixteen bytes, float scale, float bias, float* __restrict out) {
  uint8_t each[16];
  std::memcpy(each, &bytes, 16);
  for (int i = 0; i < 16; ++i) {
    int value = kSigned ? static_cast<int8_t>(each[i]) : each[i];
    out[i] = scale * static_cast<float>(value) + bias;
  }
}
inline Sixteen load_bytes(const uint8_t* at) {
  Sixteen bytes;
  std::memcpy(&bytes, at, 16);
  return bytes;
}
inline Sixteen bits_of(Sixteen bytes, int shift, int mask) { return (bytes >> shift) & static_cast<uint8_t>(mask); }
inline Sixteen shifted_up(Sixteen bytes, int shift) { return bytes << shift; }
inline Sixteen look_up(const int8_t* table, Sixteen index) {
  return __builtin_shuffle(load_bytes(reinterpret_cast<const uint8_t*>(table)), index);
}
inline Sixteen spread_bits(uint32_t word) {
  const auto low = static_cast<uint8_t>(word), high = static_cast<uint8_t>(word >> 8);
  const Sixteen bytes = {low, low, low, low, low, low, low, low, high, high, high, high, high, high, high, high};
  const Sixteen shifts = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
  return (bytes >> shifts) & 1;
}
#endif

// 16 bytes -> 16 low and 16 high nibbles
inline void halves(const uint8_t* at, float scale, float bias, float* out) {
  const Sixteen bytes = load_bytes(at);
  scale16<false>(bits_of(bytes, 0, 15), scale, bias, out);
  scale16<false>(bits_of(bytes, 4, 15), scale, bias, out + 16);
}

inline void halves_of(const int8_t* table, const uint8_t* at, float scale, float* out) {
  const Sixteen bytes = load_bytes(at);
  scale16<true>(look_up(table, bits_of(bytes, 0, 15)), scale, 0, out);
  scale16<true>(look_up(table, bits_of(bytes, 4, 15)), scale, 0, out + 16);
}

inline void five_bits(uint32_t fifth, const uint8_t* at, float scale, float bias, float* out) {
  const Sixteen bytes = load_bytes(at);
  scale16<false>(bits_of(bytes, 0, 15) | shifted_up(spread_bits(fifth), 4), scale, bias, out);
  scale16<false>(bits_of(bytes, 4, 15) | shifted_up(spread_bits(fifth >> 16), 4), scale, bias, out + 16);
}

// The eight 6-bit scales and eight 6-bit offsets of Q4_K and Q5_K, from 12 bytes: a byte each.
struct SixBits {
  uint8_t scales[8], offsets[8];
};

inline SixBits six_bits(const uint8_t* packed) {
  const uint32_t scale = load32(packed), offset = load32(packed + 4), rest = load32(packed + 8);
  const uint32_t words[4] = {
      scale & 0x3f3f3f3f,
      (rest & 0x0f0f0f0f) | (scale >> 2 & 0x30303030),
      offset & 0x3f3f3f3f,
      (rest >> 4 & 0x0f0f0f0f) | (offset >> 2 & 0x30303030),
  };
  SixBits out;
  std::memcpy(&out, words, 16);
  return out;
}

// The sixteen 6-bit scales of Q3_K, from 12 bytes, 32 too large.
inline void q3_scales(const uint8_t* packed, uint8_t* out) {
  const uint32_t a = load32(packed), b = load32(packed + 4), high = load32(packed + 8);
  const uint32_t words[4] = {
      (a & 0x0f0f0f0f) | (high << 4 & 0x30303030),
      (b & 0x0f0f0f0f) | (high << 2 & 0x30303030),
      (a >> 4 & 0x0f0f0f0f) | (high & 0x30303030),
      (b >> 4 & 0x0f0f0f0f) | (high >> 2 & 0x30303030),
  };
  std::memcpy(out, words, 16);
}

// The six 2-bit scale tops of IQ4_XS joined with their nibbles, of group g: -32 to 31.
inline int iq4_xs_scale(const uint8_t* block, int g) {
  return ((block[4 + g / 2] >> (g % 2 * 4) & 15) | (load16(block + 2) >> (2 * g) & 3) << 4) - 32;
}

// Half of 2^(code - 127), for MXFP4, whose table is doubled.
inline float half_e8m0(uint8_t code) { return bits_to_float(code < 2 ? 0x00200000u << code : uint32_t(code - 1) << 23); }

inline void decode_q2_k(const uint8_t* __restrict block, float* __restrict out) {
  const float d = f16_to_float(load16(block + 80)), m = f16_to_float(load16(block + 82));
  for (int g = 0; g < 16; ++g) {
    const uint8_t* bytes = block + 16 + g / 8 * 32 + g % 2 * 16;
    const float scale = d * static_cast<float>(block[g] & 15), offset = -m * static_cast<float>(block[g] >> 4);
    scale16<false>(bits_of(load_bytes(bytes), g % 8 / 2 * 2, 3), scale, offset, out + 16 * g);
  }
}

inline void decode_q3_k(const uint8_t* __restrict block, float* __restrict out) {
  uint8_t scales[16];
  q3_scales(block + 96, scales);
  const float d = f16_to_float(load16(block + 108));
  for (int g = 0; g < 16; ++g) {
    const uint8_t* bytes = block + 32 + g / 8 * 32 + g % 2 * 16;
    const uint8_t* high = block + g % 2 * 16;
    const float scale = d * static_cast<float>(scales[g] - 32);
    const Sixteen low = bits_of(load_bytes(bytes), g % 8 / 2 * 2, 3);
    scale16<false>(low | shifted_up(bits_of(load_bytes(high), g / 2, 1), 2), scale, -4 * scale, out + 16 * g);
  }
}

inline void decode_q4_k(const uint8_t* __restrict block, float* __restrict out) {
  const float d = f16_to_float(load16(block)), m = f16_to_float(load16(block + 2));
  const SixBits six = six_bits(block + 4);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* bytes = block + 16 + g / 2 * 32;
    const float scale = d * six.scales[g], offset = -m * six.offsets[g];
    for (int i = 0; i < 32; i += 16) {
      scale16<false>(bits_of(load_bytes(bytes + i), g % 2 * 4, 15), scale, offset, out + 32 * g + i);
    }
  }
}

inline void decode_q5_k(const uint8_t* __restrict block, float* __restrict out) {
  const float d = f16_to_float(load16(block)), m = f16_to_float(load16(block + 2));
  const SixBits six = six_bits(block + 4);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* bytes = block + 48 + g / 2 * 32;
    const uint8_t* fifth = block + 16;
    const float scale = d * six.scales[g], offset = -m * six.offsets[g];
    for (int i = 0; i < 32; i += 16) {
      const Sixteen low = bits_of(load_bytes(bytes + i), g % 2 * 4, 15);
      scale16<false>(low | shifted_up(bits_of(load_bytes(fifth + i), g, 1), 4), scale, offset, out + 32 * g + i);
    }
  }
}

inline void decode_q6_k(const uint8_t* __restrict block, float* __restrict out) {
  const float d = f16_to_float(load16(block + 208));
  for (int g = 0; g < 16; ++g) {
    const int quad = g % 8 / 2;
    const uint8_t* low = block + g / 8 * 64 + quad % 2 * 32 + g % 2 * 16;
    const uint8_t* high = block + 128 + g / 8 * 32 + g % 2 * 16;
    const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + g]));
    const Sixteen nibbles = bits_of(load_bytes(low), quad / 2 * 4, 15);
    scale16<false>(nibbles | shifted_up(bits_of(load_bytes(high), 2 * quad, 3), 4), scale, -32 * scale, out + 16 * g);
  }
}

inline void decode_iq4_xs(const uint8_t* __restrict block, float* __restrict out) {
  const float d = f16_to_float(load16(block));
  for (int g = 0; g < 8; ++g) {
    halves_of(kIQ4, block + 8 + 16 * g, d * static_cast<float>(iq4_xs_scale(block, g)), out + 32 * g);
  }
}

inline void decode_block(Layout layout, const uint8_t* __restrict block, float* __restrict out) {
  const float d = f16_to_float(load16(block));
  switch (layout) {
    case Layout::ggml_q4_0: return halves(block + 2, d, -8 * d, out);
    case Layout::ggml_q4_1: return halves(block + 4, d, f16_to_float(load16(block + 2)), out);
    case Layout::ggml_q5_0: return five_bits(load32(block + 2), block + 6, d, -16 * d, out);
    case Layout::ggml_q5_1: return five_bits(load32(block + 4), block + 8, d, f16_to_float(load16(block + 2)), out);
    case Layout::ggml_q8_0:
      scale16<true>(load_bytes(block + 2), d, 0, out);
      return scale16<true>(load_bytes(block + 18), d, 0, out + 16);
    case Layout::ggml_iq4_nl: return halves_of(kIQ4, block + 2, d, out);
    case Layout::ggml_mxfp4: return halves_of(kE2M1Doubled, block + 1, half_e8m0(block[0]), out);
    case Layout::ggml_q2_k: return decode_q2_k(block, out);
    case Layout::ggml_q3_k: return decode_q3_k(block, out);
    case Layout::ggml_q4_k: return decode_q4_k(block, out);
    case Layout::ggml_q5_k: return decode_q5_k(block, out);
    case Layout::ggml_q6_k: return decode_q6_k(block, out);
    case Layout::ggml_iq4_xs: return decode_iq4_xs(block, out);
    default: return;
  }
}

}  // namespace umlm::UNIT
