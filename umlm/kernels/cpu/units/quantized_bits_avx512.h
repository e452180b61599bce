// Where the bits of packed values lie, for AVX512: pieces of policies that serve several ways to multiply.

namespace umlm::UNIT {

struct alignas(64) Bytes64 {
  uint8_t bytes[64];
  operator __m512i() const { return _mm512_load_si512(bytes); }
};

// For the bits of each of 64 values: the eight bytes from which they are taken, and where the shift begins.
template <int kBits>
constexpr Bytes64 field_bytes() {
  Bytes64 out{};
  for (int i = 0; i < 64; ++i) {
    int from = i / 8 * kBits + i % 8;
    out.bytes[i] = static_cast<uint8_t>(from < 64 ? from : 63);
  }
  return out;
}

// Shifts that move them to the lowest bits.
template <int kBits>
constexpr Bytes64 field_shifts() {
  Bytes64 out{};
  for (int i = 0; i < 64; ++i) out.bytes[i] = static_cast<uint8_t>((i % 8 * kBits) & 63);
  return out;
}

// Four pieces of 16 bytes, `stride` apart; only the first `count` exist.
inline __m512i quarters(const uint8_t* base, int64_t stride, int64_t count) {
  auto piece = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + i * stride)); };
  __m512i out = _mm512_zextsi128_si512(piece(0));
  if (count > 1) out = _mm512_inserti32x4(out, piece(1), 1);
  if (count > 2) out = _mm512_inserti32x4(out, piece(2), 2);
  if (count > 3) out = _mm512_inserti32x4(out, piece(3), 3);
  return out;
}

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
  static constexpr int kGroup = 16;
  static constexpr int kBytes = 84, kLow = 16, kLowStep = 32, kHigh = 0, kHighStep = 0, kMask = 0, kCount = 4;
  static constexpr int low(int g) { return g % 2 * 2; }
  static constexpr int shift(int g) { return g / 2 * 2; }
  static constexpr int turn(int, int) { return 0; }
  static constexpr int kLeast = 0;
};
struct Q3K {
  static constexpr int kGroup = 16;
  static constexpr int kBytes = 110, kLow = 32, kLowStep = 32, kHigh = 0, kHighStep = 0, kMask = 4, kCount = 8;
  static constexpr int low(int g) { return g % 2 * 2; }
  static constexpr int shift(int g) { return g / 2 * 2; }
  static constexpr int turn(int g, int half) { return 4 * half + g / 2 - 2; }
  static constexpr int kLeast = -4;
};
struct Q4K {
  static constexpr int kGroup = 32;
  static constexpr int kBytes = 144, kLow = 16, kLowStep = 64, kHigh = 0, kHighStep = 0, kMask = 0, kCount = 16;
  static constexpr int low(int g) { return g / 4 * 4 + g % 2 * 2; }
  static constexpr int shift(int g) { return g / 2 % 2 * 4; }
  static constexpr int turn(int, int) { return 0; }
  static constexpr int kLeast = 0;
};
struct Q5K {
  static constexpr int kGroup = 32;
  static constexpr int kBytes = 176, kLow = 48, kLowStep = 64, kHigh = 16, kHighStep = 0, kMask = 16, kCount = 32;
  static constexpr int low(int g) { return Q4K::low(g); }
  static constexpr int shift(int g) { return Q4K::shift(g); }
  static constexpr int turn(int g, int half) { return 4 * half + g / 2 - 4; }
  static constexpr int kLeast = 0;
};
struct Q6K {
  static constexpr int kGroup = 16;
  static constexpr int kBytes = 210, kLow = 0, kLowStep = 64, kHigh = 128, kHighStep = 32, kMask = 48, kCount = 64;
  static constexpr int low(int g) { return g / 2 % 2 * 4 + g % 2 * 2; }
  static constexpr int shift(int g) { return g / 4 * 4; }
  static constexpr int turn(int g, int) { return g / 2 * 2 - 4; }
  static constexpr int kLeast = -32;
};

// Half a block of 256 values a step: its bits as two vectors of 64 bytes.
template <typename K>
struct KBits {
  static constexpr Longs8 kLow[2] = {by_group([](int g) { return K::low(g); }),
                                     by_group([](int g) { return K::low(g) + 1; })};
  static constexpr Longs8 kHigh[2] = {by_group([](int g) { return g % 2 * 2; }),
                                      by_group([](int g) { return g % 2 * 2 + 1; })};
  static constexpr Longs8 kShift = by_group([](int g) { return K::shift(g); });
  static constexpr Longs8 kTurn[2] = {by_group([](int g) { return K::turn(g, 0); }),
                                      by_group([](int g) { return K::turn(g, 1); })};
  static __m512i load_half(const uint8_t* at) {
    return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  // Byte b of vector i has, in its low bits, value 16 (b / 8) + 8 i + b % 8; what lies above them is arbitrary.
  static void split(const uint8_t* row, int64_t step, __m512i* out) {
    const uint8_t* block = row + step / 2 * K::kBytes;
    const int64_t half = step % 2;
    const uint8_t* from = block + K::kLow + K::kLowStep * half;
    __m512i low = K::kLowStep == 64 ? _mm512_loadu_si512(from) : load_half(from);
    for (int i = 0; i < 2; ++i) {
      out[i] = _mm512_srlv_epi64(_mm512_permutexvar_epi64(kLow[i], low), kShift);
      if constexpr (K::kMask != 0) {
        __m512i high = _mm512_permutexvar_epi64(kHigh[i], load_half(block + K::kHigh + K::kHighStep * half));
        high = _mm512_rorv_epi64(high, kTurn[half]);
        out[i] = _mm512_ternarylogic_epi32(_mm512_set1_epi8(K::kMask), high, out[i], 0xca);  // a ? b : c
      }
    }
  }
};

}  // namespace umlm::UNIT
