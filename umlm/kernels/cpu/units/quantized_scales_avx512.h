// Scales and offsets of quantized rows, expanded to float32: value = scale * code + offset.

namespace umlm::UNIT {

// `count` scales from element `first` on, as float32; the rest of the 16 lanes is 0.
inline __m512 load_scales(const uint8_t* base, Type type, int64_t first, int count) {
  __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
  if (type == Type::f32) {
    return _mm512_maskz_loadu_ps(mask, reinterpret_cast<const float*>(base) + first);
  }
  __m256i halves = _mm256_maskz_loadu_epi16(mask, reinterpret_cast<const uint16_t*>(base) + first);
  if (type == Type::f16) {
    return _mm512_cvtph_ps(halves);
  }
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline __m512i load_codes(const uint8_t* base, int64_t first, int count) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << count) - 1), base + first));
}

// E8M0 powers of two: 2^(code - 127).
inline __m512 e8m0(__m512i codes) {
  __m512i bits = _mm512_slli_epi32(codes, 23);
  // code 0 is 2^-127, below the smallest normal
  const __mmask16 smallest = _mm512_testn_epi32_mask(bits, bits);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, smallest, _mm512_set1_epi32(1 << 22)));
}

// E4M3 without infinities.
inline __m512 e4m3(__m512i codes) {
  __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(codes, _mm512_set1_epi32(0x7f)), 20);
  __m512i sign = _mm512_slli_epi32(_mm512_and_si512(codes, _mm512_set1_epi32(0x80)), 24);
  __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign));
}

// The codes that a policy makes: the integers that the layout's scales are for are factor * (code - zero).
struct Codes {
  float factor, zero;
  bool plain() const { return factor == 1 && zero == 0; }
};

// Whether the layout has offsets of its own.
inline bool stores_offsets(Layout layout) {
  switch (layout) {
    case Layout::ggml_q4_1:
    case Layout::ggml_q5_1:
    case Layout::ggml_q2_k:
    case Layout::ggml_q4_k:
    case Layout::ggml_q5_k: return true;
    default: return layout <= Layout::affine8;
  }
}

inline bool has_offsets(Layout layout, Codes codes) { return codes.zero != 0 || stores_offsets(layout); }

inline void expand_mlx(const QuantizedMatrix& w, int64_t n, int64_t groups, float* scales, float* offsets) {
  for (int64_t g = 0; g < groups; g += 16) {
    const int64_t at = n * groups + g;
    const int count = static_cast<int>(groups - g < 16 ? groups - g : 16);
    if (w.biases == nullptr) {
      __m512i codes = load_codes(w.scales, at, count);
      _mm512_storeu_ps(scales + g, w.layout == Layout::nvfp4 ? e4m3(codes) : e8m0(codes));
      continue;
    }
    __m512 scale = load_scales(w.scales, w.scale_type, at, count);
    __m512 offset = load_scales(w.biases, w.scale_type, at, count);
    _mm512_storeu_ps(scales + g, scale);
    _mm512_storeu_ps(offsets + g, offset);
  }
}

// Blocks of 32 values that begin with their scale, and perhaps an offset.
inline void expand_small_blocks(Layout layout, const uint8_t* row, int64_t groups, float* scales, float* offsets) {
  const int bytes = block_shape(layout).bytes;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(bytes));
  for (int64_t g = 0; g < groups; g += 16) {
    const auto mask = static_cast<__mmask16>(groups - g < 16 ? (1u << (groups - g)) - 1 : 0xffff);
    __m512i heads = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, places, row + g * bytes, 1);
    if (layout == Layout::ggml_mxfp4) {  // half of 2^(code - 127), and the two smallest are subnormal
      __m512i codes = _mm512_and_si512(heads, _mm512_set1_epi32(255)), one = _mm512_set1_epi32(1);
      __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), codes);
      __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(codes, one), 23);
      bits = _mm512_mask_mov_epi32(bits, _mm512_cmple_epu32_mask(codes, one), small);
      _mm512_storeu_si512(scales + g, bits);
      continue;
    }
    __m512 scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(heads));
    if (layout == Layout::ggml_q4_1 || layout == Layout::ggml_q5_1) {
      _mm512_storeu_ps(offsets + g, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(heads, 16))));
    }
    _mm512_storeu_ps(scales + g, scale);
  }
}

inline __m512 float_at(const uint8_t* at) { return _mm512_set1_ps(f16_to_float(load16(at))); }

inline __m512 unsigned_floats(const uint8_t* bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
}

// Q4_K, Q5_K: 8 scales and offsets.
inline void expand_six_bits(const uint8_t* block, float* scales, float* offsets) {
  const SixBits six = six_bits(block + 4);
  __m512 both = unsigned_floats(six.scales);  // the offsets follow
  const float d = f16_to_float(load16(block)), m = f16_to_float(load16(block + 2));
  both = _mm512_mul_ps(both, _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(d), _mm512_set1_ps(-m)));
  _mm256_storeu_ps(scales, _mm512_castps512_ps256(both));
  _mm256_storeu_ps(offsets, _mm512_extractf32x8_ps(both, 1));
}

inline void expand_q2_k(const uint8_t* block, float* scales, float* offsets) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
  __m512i wide = _mm512_cvtepu8_epi32(bytes);
  __m512 scale = _mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(15)));
  __m512 offset = _mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4));
  _mm512_storeu_ps(scales, _mm512_mul_ps(scale, float_at(block + 80)));
  _mm512_storeu_ps(offsets, _mm512_xor_ps(_mm512_mul_ps(offset, float_at(block + 82)), _mm512_set1_ps(-0.0f)));
}

inline void expand_q3_k(const uint8_t* block, float* scales) {
  uint8_t six[16];
  q3_scales(block + 96, six);
  __m512 scale = _mm512_sub_ps(unsigned_floats(six), _mm512_set1_ps(32));
  _mm512_storeu_ps(scales, _mm512_mul_ps(scale, float_at(block + 108)));
}

inline void expand_q6_k(const uint8_t* block, float* scales) {
  __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192)));
  _mm512_storeu_ps(scales, _mm512_mul_ps(_mm512_cvtepi32_ps(wide), float_at(block + 208)));
}

inline void expand_iq4_xs(const uint8_t* block, float* scales) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), low_bits = _mm256_set1_epi32(15);
  __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(load32(block + 4))), _mm256_slli_epi32(lanes, 2));
  __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(load16(block + 2)), _mm256_slli_epi32(lanes, 1));
  high = _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4);
  __m256i six = _mm256_sub_epi32(_mm256_or_si256(_mm256_and_si256(low, low_bits), high), _mm256_set1_epi32(32));
  _mm256_storeu_ps(scales, _mm256_mul_ps(_mm256_cvtepi32_ps(six), _mm256_set1_ps(f16_to_float(load16(block)))));
}

// The scales and offsets as the layout has them.
inline void expand_stored(const QuantizedMatrix& w, int64_t n, float* scales, float* offsets) {
  const int64_t groups = w.columns / w.group;
  if (!is_blocks(w.layout)) {
    return expand_mlx(w, n, groups, scales, offsets);
  }
  const BlockShape shape = block_shape(w.layout);
  const uint8_t* row = w.weight + n * w.row_bytes;
  if (shape.values == 32) {
    return expand_small_blocks(w.layout, row, groups, scales, offsets);
  }
  const int per_block = 256 / w.group;
  for (int64_t b = 0; b < w.columns / 256; ++b, row += shape.bytes, scales += per_block, offsets += per_block) {
    switch (w.layout) {
      case Layout::ggml_q2_k: expand_q2_k(row, scales, offsets); break;
      case Layout::ggml_q3_k: expand_q3_k(row, scales); break;
      case Layout::ggml_q6_k: expand_q6_k(row, scales); break;
      case Layout::ggml_iq4_xs: expand_iq4_xs(row, scales); break;
      default: expand_six_bits(row, scales, offsets); break;
    }
  }
}

// From the layout's integers to a policy's codes; what lies behind the groups becomes 0.
inline void recode(Codes codes, bool offset, int64_t groups, float* scales, float* offsets) {
  for (int64_t g = 0; g < groups; g += 16) {
    const auto mask = static_cast<__mmask16>(groups - g < 16 ? (1u << (groups - g)) - 1 : 0xffff);
    __m512 scale = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, scales + g), _mm512_set1_ps(codes.factor));
    __m512 first = offset ? _mm512_maskz_loadu_ps(mask, offsets + g) : _mm512_setzero_ps();
    _mm512_storeu_ps(scales + g, scale);
    _mm512_storeu_ps(offsets + g, _mm512_fnmadd_ps(scale, _mm512_set1_ps(codes.zero), first));
  }
}

}  // namespace umlm::UNIT
