// How rows of quantized values become vectors of unsigned bytes, their codes. A policy takes a step of 128 values to two
// vectors; source(vector, byte) is the value within the step that a byte holds. Lane i of both together holds eight
// values of one group, in ascending order of groups, and any four of a lane lie within 16 in a row. Groups have
// kLeastGroup to kMostGroup values. Needs quantized_bits_avx512.h.

namespace umlm::UNIT::vnni {

inline constexpr int kValues = 128, kVectors = 2;

// Where the scales of a layout lie: in arrays of their own as floats, at the head of every block of 32 values as f16
// (offsets, where there are any, behind them), or elsewhere.
enum class Heads { arrays, blocks, other };

inline __m512i low_bits(__m512i bytes, int mask) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(mask)));
}

// A table for vpshufb of values, raised so that none is negative.
struct Raised {
  __m512i codes;
  Raised(const int8_t* values, int by) {
    __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    table = _mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(by)));
    codes = _mm512_broadcast_i32x4(table);
  }
  __m512i operator()(__m512i nibbles) const { return _mm512_shuffle_epi8(codes, nibbles); }
};

// MLX's 4-bit values: integers, or small floats doubled and 12 more.
template <bool kFloats>
struct Nibbles {
  static constexpr int kMost = kFloats ? 24 : 15;
  static constexpr int kLeastGroup = kFloats ? 16 : 32, kMostGroup = kFloats ? 32 : 128;
  static constexpr Heads kHeads = kFloats ? Heads::other : Heads::arrays;
  Raised table;
  explicit Nibbles(const QuantizedMatrix&) : table(kE2M1Doubled, 12) {}
  static constexpr Codes codes(Layout) { return kFloats ? Codes{0.5f, 12} : Codes{1, 0}; }
  static constexpr int source(int vector, int byte) { return 2 * byte + vector; }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    __m512i bytes = kWhole ? _mm512_loadu_si512(row + 64 * step)
                           : _mm512_maskz_loadu_epi8(~0ull >> (64 - left / 2), row + 64 * step);
    out[0] = low_bits(bytes, 15);
    out[1] = low_bits(_mm512_srli_epi16(bytes, 4), 15);
    if (kFloats) {
      out[0] = table(out[0]), out[1] = table(out[1]);
    }
  }
};

// Two vectors of 64 values in a row, in turns of four.
struct Turns {
  static constexpr int source(int vector, int byte) { return 8 * (byte / 4) + 4 * vector + byte % 4; }
  static void interleave(__m512i first, __m512i second, __m512i* out) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    out[0] = _mm512_permutex2var_epi32(first, even, second);
    out[1] = _mm512_permutex2var_epi32(first, _mm512_or_si512(even, _mm512_set1_epi32(1)), second);
  }
};

// `count` bytes, 0 to 64; the rest is 0.
inline __m512i load_bytes64(const uint8_t* at, int64_t count) {
  return _mm512_maskz_loadu_epi8(count <= 0 ? 0 : count < 64 ? ~0ull >> (64 - count) : ~0ull, at);
}

// MLX's 8-bit values
struct Bytes : Turns {
  static constexpr int kMost = 255;
  static constexpr int kLeastGroup = 32, kMostGroup = 128;
  static constexpr Heads kHeads = Heads::arrays;
  explicit Bytes(const QuantizedMatrix&) {}
  static constexpr Codes codes(Layout) { return {1, 0}; }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const uint8_t* at = row + 128 * step;
    interleave(load_bytes64(at, kWhole ? 64 : left), load_bytes64(at + 64, kWhole ? 64 : left - 64), out);
  }
};

// Q8_0: four blocks a step, values from 128 below
struct Q8Blocks : Turns {
  static constexpr int kMost = 255;
  static constexpr int kLeastGroup = 32, kMostGroup = 32;
  static constexpr Heads kHeads = Heads::blocks;
  explicit Q8Blocks(const QuantizedMatrix&) {}
  static constexpr Codes codes(Layout) { return {1, 128}; }
  static __m512i pair(const uint8_t* base, int64_t count) {
    auto piece = [&](int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base + 34 * i)); };
    if (count <= 0) return _mm512_setzero_si512();
    __m512i bytes = _mm512_zextsi256_si512(piece(0));
    if (count > 1) bytes = _mm512_inserti64x4(bytes, piece(1), 1);
    return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
  }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const uint8_t* base = row + 136 * step + 2;
    const int64_t count = kWhole ? 4 : left / 32;
    interleave(pair(base, count), pair(base + 68, count - 2), out);
  }
};

// For four values of `kBits` bits each in every 32-bit lane: the two 16-bit words that hold them, and where they begin.
template <int kBits>
constexpr Bytes64 field_words() {
  Bytes64 out{};
  for (int i = 0; i < 32; ++i) out.bytes[2 * i] = static_cast<uint8_t>(i / 2 * 4 * kBits / 16 + i % 2);
  return out;
}

template <int kBits>
constexpr Bytes64 word_shifts() {
  Bytes64 out{};
  for (int i = 0; i < 16; ++i) out.bytes[4 * i] = static_cast<uint8_t>(i * 4 * kBits % 16);
  return out;
}

// MLX's 2-, 3-, 5-, 6-bit values
template <int kBits>
struct Fields : Turns {
  static constexpr int kMost = (1 << kBits) - 1;
  static constexpr int kLeastGroup = 32, kMostGroup = 128;
  static constexpr Heads kHeads = Heads::arrays;
  static constexpr Codes codes(Layout) { return {1, 0}; }
#if defined(__AVX512VBMI__)
  static constexpr Bytes64 kGather = field_bytes<kBits>(), kShifts = field_shifts<kBits>();
  __m512i spread(__m512i bytes) const {
    return low_bits(_mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, bytes)), kMost);
  }
#else
  static constexpr Bytes64 kGather = field_words<kBits>(), kShifts = word_shifts<kBits>();
  __m512i spread(__m512i bytes) const {
    __m512i four = _mm512_srlv_epi32(_mm512_permutexvar_epi16(gather, bytes), shifts), out = four;
    for (int i = 1; i < 4; ++i) {
      __m512i moved = _mm512_slli_epi32(four, i * (8 - kBits));
      out = _mm512_mask_mov_epi8(out, 0x1111111111111111ull << i, moved);
    }
    return low_bits(out, kMost);
  }
#endif
  __m512i gather, shifts;
  explicit Fields(const QuantizedMatrix&) : gather(kGather), shifts(kShifts) {}
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    constexpr int64_t kHalf = 8 * kBits;
    const uint8_t* at = row + 2 * kHalf * step;
    const int64_t count = kWhole ? 2 * kHalf : left / 8 * kBits;
    __m512i first = load_bytes64(at, count < kHalf ? count : kHalf), second = load_bytes64(at + kHalf, count - kHalf);
    interleave(spread(first), spread(second), out);
  }
};

// Groups of 32 nibbles in 16 bytes, the first 16 values in the low ones: Q4_0 and Q4_1, or MXFP4, IQ4_NL and IQ4_XS by
// a table.
enum class Kind { integers, floats, steps };

template <Kind kKind>
struct SplitNibbles {
  static constexpr int kMost = kKind == Kind::integers ? 15 : kKind == Kind::floats ? 24 : 240;
  static constexpr int kLeastGroup = 32, kMostGroup = 32;
  static constexpr Heads kHeads = kKind == Kind::integers ? Heads::blocks : Heads::other;
  Raised table;
  int64_t stride, begin, jump;  // between groups; to the first group; more, at every second step
  explicit SplitNibbles(const QuantizedMatrix& w)
      : table(kKind == Kind::floats ? kE2M1Doubled : kIQ4, kKind == Kind::floats ? 12 : 127) {
    stride = block_shape(w.layout).bytes, begin = stride - 16, jump = 0;
    if (w.layout == Layout::ggml_iq4_xs) stride = 16, begin = 8, jump = 8;
  }
  static constexpr Codes codes(Layout layout) {
    if (kKind != Kind::integers) return {1, kKind == Kind::floats ? 12.f : 127.f};
    return {1, layout == Layout::ggml_q4_0 ? 8.f : 0.f};
  }
  static constexpr int source(int vector, int byte) { return 32 * (byte / 16) + 16 * vector + byte % 16; }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const uint8_t* base = row + 4 * stride * step + step / 2 * jump + begin;
    __m512i bytes = quarters(base, stride, kWhole ? 4 : left / 32);
    out[0] = low_bits(bytes, 15);
    out[1] = low_bits(_mm512_srli_epi16(bytes, 4), 15);
    if (kKind != Kind::integers) {
      out[0] = table(out[0]), out[1] = table(out[1]);
    }
  }
};

// The same with fifth bits in four bytes: Q5_0, Q5_1.
struct SplitFives {
  static constexpr int kMost = 31;
  static constexpr int kLeastGroup = 32, kMostGroup = 32;
  static constexpr Heads kHeads = Heads::blocks;
  int64_t stride;
  explicit SplitFives(const QuantizedMatrix& w) : stride(block_shape(w.layout).bytes) {}
  static constexpr Codes codes(Layout layout) { return {1, layout == Layout::ggml_q5_0 ? 16.f : 0.f}; }
  static constexpr int source(int vector, int byte) { return 32 * (byte / 16) + 16 * vector + byte % 16; }
  static __m512i join(__m512i nibbles, __m512i fifth, int first) {
    const __m512i bits = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ull));
    const __m512i from = _mm512_set4_epi64(0x0101010101010101ll * (first + 1), 0x0101010101010101ll * first,
                                           0x0101010101010101ll * (first + 1), 0x0101010101010101ll * first);
    __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fifth, from), bits);
    nibbles = low_bits(nibbles, 15);
    return _mm512_mask_add_epi8(nibbles, set, nibbles, _mm512_set1_epi8(16));
  }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t left, __m512i* out) const {
    const int64_t count = kWhole ? 4 : left / 32;
    const uint8_t* base = row + 4 * stride * step + stride - 20;
    __m512i fifth = quarters(base, stride, count), bytes = quarters(base + 4, stride, count);
    out[0] = join(bytes, fifth, 0);
    out[1] = join(_mm512_srli_epi16(bytes, 4), fifth, 2);
  }
};

// Half a block of 256 values a step.
template <typename K>
struct KBlocks {
  static constexpr int kMost = K::kCount - 1;
  static constexpr int kLeastGroup = K::kGroup, kMostGroup = K::kGroup;
  static constexpr Heads kHeads = Heads::other;
  explicit KBlocks(const QuantizedMatrix&) {}
  static constexpr Codes codes(Layout) { return {1, -float(K::kLeast)}; }
  static constexpr int source(int vector, int byte) { return 16 * (byte / 8) + 8 * vector + byte % 8; }
  template <bool kWhole>
  void decode(const uint8_t* row, int64_t step, int64_t, __m512i* out) const {
    KBits<K>::split(row, step, out);
    out[0] = low_bits(out[0], kMost), out[1] = low_bits(out[1], kMost);
  }
};

// Whether integer products serve the layout; the values of others are no bytes.
inline bool serves(Layout layout) { return layout != Layout::mxfp8; }

// Call visit(policy pointer) for the matrix's layout.
template <typename Visit>
auto with_policy(const QuantizedMatrix& w, Visit&& visit) {
  switch (w.layout) {
    case Layout::affine2: return visit(static_cast<Fields<2>*>(nullptr));
    case Layout::affine3: return visit(static_cast<Fields<3>*>(nullptr));
    case Layout::affine5: return visit(static_cast<Fields<5>*>(nullptr));
    case Layout::affine6: return visit(static_cast<Fields<6>*>(nullptr));
    case Layout::affine8: return visit(static_cast<Bytes*>(nullptr));
    case Layout::mxfp4:
    case Layout::nvfp4: return visit(static_cast<Nibbles<true>*>(nullptr));
    case Layout::ggml_q4_0:
    case Layout::ggml_q4_1: return visit(static_cast<SplitNibbles<Kind::integers>*>(nullptr));
    case Layout::ggml_mxfp4: return visit(static_cast<SplitNibbles<Kind::floats>*>(nullptr));
    case Layout::ggml_iq4_nl:
    case Layout::ggml_iq4_xs: return visit(static_cast<SplitNibbles<Kind::steps>*>(nullptr));
    case Layout::ggml_q5_0:
    case Layout::ggml_q5_1: return visit(static_cast<SplitFives*>(nullptr));
    case Layout::ggml_q8_0: return visit(static_cast<Q8Blocks*>(nullptr));
    case Layout::ggml_q2_k: return visit(static_cast<KBlocks<Q2K>*>(nullptr));
    case Layout::ggml_q3_k: return visit(static_cast<KBlocks<Q3K>*>(nullptr));
    case Layout::ggml_q4_k: return visit(static_cast<KBlocks<Q4K>*>(nullptr));
    case Layout::ggml_q5_k: return visit(static_cast<KBlocks<Q5K>*>(nullptr));
    case Layout::ggml_q6_k: return visit(static_cast<KBlocks<Q6K>*>(nullptr));
    default: return visit(static_cast<Nibbles<false>*>(nullptr));
  }
}

}  // namespace umlm::UNIT::vnni
