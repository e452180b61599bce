// How rows of ggml's blocks become bf16 vectors: policies as in quantized_policies_avx512bf16.h. Needs
// quantized_bits_avx512.h.

namespace umlm::UNIT {

inline constexpr Words32 kNibblesLess8 = integers(-8, 16), kIQ4Values = lookup(kIQ4);
inline constexpr Words32 kSmallDoubled = lookup(kE2M1Doubled);

// Groups of 32 nibbles in 16 bytes, the first 16 values in the low ones: Q4_0, Q4_1, IQ4_NL, IQ4_XS, MXFP4.
struct SplitNibbles {
  static constexpr int kValues = 128, kVectors = 4;
  __m512i values;
  int64_t stride, begin, jump;  // between groups; to the first group; more, at every second step
  explicit SplitNibbles(const QuantizedMatrix& w) : values(kNibbles) {
    const BlockShape shape = block_shape(w.layout);
    stride = shape.bytes, begin = shape.bytes - 16, jump = 0;
    if (w.layout == Layout::ggml_q4_0) values = kNibblesLess8;
    if (w.layout == Layout::ggml_iq4_nl) values = kIQ4Values;
    if (w.layout == Layout::ggml_mxfp4) values = kSmallDoubled;
    if (w.layout == Layout::ggml_iq4_xs) values = kIQ4Values, stride = 16, begin = 8, jump = 8;
  }
  static constexpr int source(int vector, int word) {
    return 32 * (word / 8) + 16 * (vector % 2) + 2 * (word % 8) + vector / 2;
  }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const uint8_t* base = row + 4 * stride * step + step / 2 * jump + begin;
    __m512i bytes = quarters(base, stride, kWhole ? 4 : left / 32);
    out[0] = _mm512_permutexvar_epi16(bytes, values);
    out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), values);
    out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 8), values);
    out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 12), values);
  }
};

constexpr Bytes64 fifth_bytes(int first) {
  Bytes64 out{};
  for (int i = 0; i < 64; ++i) out.bytes[i] = static_cast<uint8_t>(i / 16 * 4 + first + i % 16 / 8);
  return out;
}

inline constexpr Bytes64 kFifthLow = fifth_bytes(0), kFifthHigh = fifth_bytes(2);
inline constexpr Words32 kFiveBits = integers(0, 32), kFiveBitsLess16 = integers(-16, 32);

// The same with fifth bits in four bytes: Q5_0, Q5_1.
struct SplitFives {
  static constexpr int kValues = 128, kVectors = 4;
  __m512i values;
  int64_t stride;
  explicit SplitFives(const QuantizedMatrix& w)
      : values(w.layout == Layout::ggml_q5_0 ? kFiveBitsLess16 : kFiveBits), stride(block_shape(w.layout).bytes) {}
  static constexpr int source(int vector, int word) { return SplitNibbles::source(vector, word); }
  static __m512i join(__m512i nibbles, __m512i fifth, __m512i index) {
    const __m512i bits = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ull));
    __mmask64 set = _mm512_test_epi8_mask(_mm512_permutexvar_epi8(index, fifth), bits);
    nibbles = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
    return _mm512_mask_add_epi8(nibbles, set, nibbles, _mm512_set1_epi8(16));
  }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const int64_t count = kWhole ? 4 : left / 32;
    const uint8_t* base = row + 4 * stride * step + stride - 20;
    auto word = [&](int i) { return i < count ? static_cast<int>(load32(base + i * stride)) : 0; };
    __m512i fifth = _mm512_zextsi128_si512(_mm_setr_epi32(word(0), word(1), word(2), word(3)));
    __m512i bytes = quarters(base + 4, stride, count);
    __m512i low = join(bytes, fifth, kFifthLow), high = join(_mm512_srli_epi16(bytes, 4), fifth, kFifthHigh);
    out[0] = _mm512_permutexvar_epi16(low, values);
    out[1] = _mm512_permutexvar_epi16(high, values);
    out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(low, 8), values);
    out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(high, 8), values);
  }
};

// Q8_0: two blocks a step.
struct Q8Blocks : OddBytes {
  explicit Q8Blocks(const QuantizedMatrix&) {}
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const uint8_t* base = row + 68 * step + 2;
    auto piece = [&](int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base + 34 * i)); };
    __m512i bytes = _mm512_zextsi256_si512(piece(0));
    if (kWhole || left > 32) bytes = _mm512_inserti64x4(bytes, piece(1), 1);
    spread(bytes, out);
  }
};

// Half a block of 256 values a step.
template <typename K>
struct KBlocks {
  static constexpr int kValues = 128, kVectors = 4;
  static constexpr Words32 kFirst = integers(K::kLeast, K::kCount), kMore = integers(K::kLeast + 32, 32);
  explicit KBlocks(const QuantizedMatrix&) {}
  static constexpr int source(int vector, int word) {
    return 16 * (word / 4) + 8 * (vector / 2) + 2 * (word % 4) + vector % 2;
  }
  static __m512i look_up(__m512i index) {
    if constexpr (K::kCount == 64) {
      return _mm512_permutex2var_epi16(kFirst, index, kMore);
    } else {
      return _mm512_permutexvar_epi16(index, kFirst);
    }
  }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t, __m512i* out) const {
    __m512i bits[2];
    KBits<K>::split(row, step, bits);
    for (int i = 0; i < 2; ++i) {
      out[2 * i] = look_up(bits[i]);
      out[2 * i + 1] = look_up(_mm512_srli_epi16(bits[i], 8));
    }
  }
};

}  // namespace umlm::UNIT
