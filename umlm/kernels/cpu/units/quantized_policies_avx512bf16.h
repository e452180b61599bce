// How rows of MLX's layouts become bf16 vectors. A policy takes a step of kValues values to kVectors vectors of 32;
// source(vector, word) is the value within the step that a word of a vector holds, and the 16 lanes of two words hold
// values of one group each, in ascending order of groups.

namespace umlm::UNIT {

struct alignas(64) Words32 {
  uint16_t words[32];
  operator __m512i() const { return _mm512_load_si512(words); }
};

constexpr uint16_t bf16_bits(float value) { return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16); }

// A table for vpermw, which looks at 5 bits of an index: `values` over and over.
template <typename T, int kCount>
constexpr Words32 lookup(const T (&values)[kCount]) {
  Words32 out{};
  for (int i = 0; i < 32; ++i) out.words[i] = bf16_bits(static_cast<float>(values[i % kCount]));
  return out;
}

// Integers first, first + 1, ... that start over after `count`.
constexpr Words32 integers(int first, int count) {
  Words32 out{};
  for (int i = 0; i < 32; ++i) out.words[i] = bf16_bits(static_cast<float>(first + i % count));
  return out;
}

inline constexpr Words32 kNibbles = integers(0, 16);
inline constexpr Words32 kSmallFloats = lookup(kE2M1);

// 4-bit values: vector k of a step holds the nibbles k, k + 4, k + 8, ...
struct Nibbles {
  static constexpr int kValues = 128, kVectors = 4;
  __m512i values;
  explicit Nibbles(const QuantizedMatrix& w) : values(w.layout == Layout::affine4 ? kNibbles : kSmallFloats) {}
  static constexpr int source(int vector, int word) { return 4 * word + vector; }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    __m512i bytes = kWhole ? _mm512_loadu_si512(row + 64 * step)
                           : _mm512_maskz_loadu_epi8(~0ull >> (64 - left / 2), row + 64 * step);
    out[0] = _mm512_permutexvar_epi16(bytes, values);
    out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), values);
    out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 8), values);
    out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 12), values);
  }
};

struct alignas(64) Bytes128 {
  uint8_t bytes[128];
};

// One byte of the bf16 numbers 1, 3, 5, ... 255.
constexpr Bytes128 odd_bytes(int byte) {
  Bytes128 out{};
  for (int i = 0; i < 128; ++i) {
    out.bytes[i] = static_cast<uint8_t>(bf16_bits(static_cast<float>(2 * i + 1)) >> (8 * byte));
  }
  return out;
}

inline constexpr Bytes128 kOddLow = odd_bytes(0), kOddHigh = odd_bytes(1);

// Signed bytes q become 2 q + 1, which bf16 holds exactly and which its sign and 7 bits tell.
struct OddBytes {
  static constexpr int kValues = 64, kVectors = 2;
  static constexpr int source(int vector, int word) { return 16 * (word / 8) + 8 * vector + word % 8; }
  __m512i low[2], high[2];
  OddBytes() {
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(kOddLow.bytes + 64 * i);
      high[i] = _mm512_load_si512(kOddHigh.bytes + 64 * i);
    }
  }
  void spread(__m512i q, __m512i* out) const {
    __m512i index = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(q), _mm512_set1_epi8(-1), q);
    __m512i lower = _mm512_permutex2var_epi8(low[0], index, low[1]);
    __m512i upper = _mm512_permutex2var_epi8(high[0], index, high[1]);
    upper = _mm512_ternarylogic_epi32(upper, q, _mm512_set1_epi8(-128), 0xf8);  // a | (b & c)
    out[0] = _mm512_unpacklo_epi8(lower, upper);
    out[1] = _mm512_unpackhi_epi8(lower, upper);
  }
};

// 8-bit values, from 128 below
struct Bytes : OddBytes {
  explicit Bytes(const QuantizedMatrix&) {}
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    __m512i bytes = kWhole ? _mm512_loadu_si512(row + 64 * step)
                           : _mm512_maskz_loadu_epi8(~0ull >> (64 - left), row + 64 * step);
    spread(_mm512_xor_si512(bytes, _mm512_set1_epi8(-128)), out);
  }
};

// 2-, 3-, 5-, 6-bit values: each becomes the top of a bf16 fraction, 2^bits + value, which is exact.
template <int kBits>
struct Fields {
  static constexpr int kValues = 64, kVectors = 2;
  static constexpr Bytes64 kGather = field_bytes<kBits>(), kShifts = field_shifts<kBits>(7 - kBits);
  __m512i gather, shifts;
  explicit Fields(const QuantizedMatrix&) : gather(kGather), shifts(kShifts) {}
  static constexpr int source(int vector, int word) { return 2 * word + vector; }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const int64_t count = kWhole ? 8 * kBits : left / 8 * kBits;
    __m512i bytes = _mm512_maskz_loadu_epi8(~0ull >> (64 - count), row + 8 * kBits * step);
    __m512i fields = _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, bytes));
    fields = _mm512_and_si512(fields, _mm512_set1_epi8(((1 << kBits) - 1) << (7 - kBits)));
    __m512i base = _mm512_set1_epi16((127 + kBits) << 7);
    out[0] = _mm512_ternarylogic_epi32(fields, _mm512_set1_epi16(0x00ff), base, 0xea);  // (a & b) | c
    out[1] = _mm512_or_si512(_mm512_srli_epi16(fields, 8), base);
  }
};

// E4M3 bytes, values with 4 significant bits; the smallest are no normal bf16 in place, so go by way of float32.
struct Floats8 {
  static constexpr int kValues = 64, kVectors = 2;
  explicit Floats8(const QuantizedMatrix&) {}
  // byte b of each of 16 words, then byte b + 1: vector v holds the values of bytes 2 v and 2 v + 1 in turn
  static constexpr int source(int vector, int word) { return 4 * (word / 2) + 2 * vector + word % 2; }
  static __m512i value(__m512i bytes, int byte) {
    __m512i code = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(8 * byte));
    __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x7f)), 20);
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
    __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
    return _mm512_or_si512(_mm512_castps_si512(scaled), sign);
  }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    __m512i bytes = kWhole ? _mm512_loadu_si512(row + 64 * step)
                           : _mm512_maskz_loadu_epi8(~0ull >> (64 - left), row + 64 * step);
    for (int vector = 0; vector < 2; ++vector) {
      // the values are exact in the upper halves
      out[vector] = _mm512_or_si512(_mm512_srli_epi32(value(bytes, 2 * vector), 16), value(bytes, 2 * vector + 1));
    }
  }
};

}  // namespace umlm::UNIT
