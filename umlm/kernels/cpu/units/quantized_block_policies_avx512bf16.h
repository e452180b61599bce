// How rows of ggml's blocks become bf16 vectors: policies as in quantized_policies_avx512bf16.h.

namespace umlm::UNIT {

// Four pieces of 16 bytes, `stride` apart; only the first `count` exist.
inline __m512i quarters(const uint8_t* base, int64_t stride, int64_t count) {
  auto piece = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + i * stride)); };
  __m512i out = _mm512_zextsi128_si512(piece(0));
  if (count > 1) out = _mm512_inserti32x4(out, piece(1), 1);
  if (count > 2) out = _mm512_inserti32x4(out, piece(2), 2);
  if (count > 3) out = _mm512_inserti32x4(out, piece(3), 3);
  return out;
}

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

struct alignas(64) Longs8 {
  uint64_t longs[8];
  operator __m512i() const { return _mm512_load_si512(longs); }
};

// f(g) for the eight groups of 16 values in half a K block
template <typename F>
constexpr Longs8 by_group(F f) {
  Longs8 out{};
  for (int g = 0; g < 8; ++g) out.longs[g] = static_cast<uint64_t>(f(g)) & 63;
  return out;
}

// Where a K layout's bits lie. Groups of 16 values take 8 bytes from the 8-byte piece low(g) on, and the next, shifted
// by shift(g); further bits come from the piece high(g), turned right by turn(g, half) to the bits of kMask.
struct Q2K {
  static constexpr int kBytes = 84, kLow = 16, kLowStep = 32, kHigh = 0, kHighStep = 0, kMask = 0, kCount = 4;
  static constexpr int low(int g) { return g % 2 * 2; }
  static constexpr int shift(int g) { return g / 2 * 2; }
  static constexpr int turn(int, int) { return 0; }
  static constexpr Words32 kValues = integers(0, 4);
};
struct Q3K {
  static constexpr int kBytes = 110, kLow = 32, kLowStep = 32, kHigh = 0, kHighStep = 0, kMask = 4, kCount = 8;
  static constexpr int low(int g) { return g % 2 * 2; }
  static constexpr int shift(int g) { return g / 2 * 2; }
  static constexpr int turn(int g, int half) { return 4 * half + g / 2 - 2; }
  static constexpr Words32 kValues = integers(-4, 8);
};
struct Q4K {
  static constexpr int kBytes = 144, kLow = 16, kLowStep = 64, kHigh = 0, kHighStep = 0, kMask = 0, kCount = 16;
  static constexpr int low(int g) { return g / 4 * 4 + g % 2 * 2; }
  static constexpr int shift(int g) { return g / 2 % 2 * 4; }
  static constexpr int turn(int, int) { return 0; }
  static constexpr Words32 kValues = integers(0, 16);
};
struct Q5K {
  static constexpr int kBytes = 176, kLow = 48, kLowStep = 64, kHigh = 16, kHighStep = 0, kMask = 16, kCount = 32;
  static constexpr int low(int g) { return Q4K::low(g); }
  static constexpr int shift(int g) { return Q4K::shift(g); }
  static constexpr int turn(int g, int half) { return 4 * half + g / 2 - 4; }
  static constexpr Words32 kValues = integers(0, 32);
};
struct Q6K {
  static constexpr int kBytes = 210, kLow = 0, kLowStep = 64, kHigh = 128, kHighStep = 32, kMask = 48, kCount = 64;
  static constexpr int low(int g) { return g / 2 % 2 * 4 + g % 2 * 2; }
  static constexpr int shift(int g) { return g / 4 * 4; }
  static constexpr int turn(int g, int) { return g / 2 * 2 - 4; }
  static constexpr Words32 kValues = integers(-32, 32), kMore = integers(0, 32);
};

// Half a block of 256 values a step.
template <typename K>
struct KBlocks {
  static constexpr int kValues = 128, kVectors = 4;
  static constexpr Longs8 kLow[2] = {by_group([](int g) { return K::low(g); }),
                                     by_group([](int g) { return K::low(g) + 1; })};
  static constexpr Longs8 kHigh[2] = {by_group([](int g) { return g % 2 * 2; }),
                                      by_group([](int g) { return g % 2 * 2 + 1; })};
  static constexpr Longs8 kShift = by_group([](int g) { return K::shift(g); });
  static constexpr Longs8 kTurn[2] = {by_group([](int g) { return K::turn(g, 0); }),
                                      by_group([](int g) { return K::turn(g, 1); })};
  explicit KBlocks(const QuantizedMatrix&) {}
  static constexpr int source(int vector, int word) {
    return 16 * (word / 4) + 8 * (vector / 2) + 2 * (word % 4) + vector % 2;
  }
  static __m512i look_up(__m512i index) {
    if constexpr (K::kCount == 64) {
      return _mm512_permutex2var_epi16(K::kValues, index, K::kMore);
    } else {
      return _mm512_permutexvar_epi16(index, K::kValues);
    }
  }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t, __m512i* out) const {
    const uint8_t* block = row + step / 2 * K::kBytes;
    const int64_t half = step % 2;
    __m512i low = K::kLowStep == 64 ? _mm512_loadu_si512(block + K::kLow + 64 * half) : load_half(block + K::kLow + 32 * half);
    for (int i = 0; i < 2; ++i) {
      __m512i index = _mm512_srlv_epi64(_mm512_permutexvar_epi64(kLow[i], low), kShift);
      if constexpr (K::kMask != 0) {
        __m512i high = _mm512_permutexvar_epi64(kHigh[i], load_half(block + K::kHigh + K::kHighStep * half));
        high = _mm512_rorv_epi64(high, kTurn[half]);
        index = _mm512_ternarylogic_epi32(_mm512_set1_epi8(K::kMask), high, index, 0xca);  // a ? b : c
      }
      out[2 * i] = look_up(index);
      out[2 * i + 1] = look_up(_mm512_srli_epi16(index, 8));
    }
  }
  static __m512i load_half(const uint8_t* at) {
    return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
};

}  // namespace umlm::UNIT
