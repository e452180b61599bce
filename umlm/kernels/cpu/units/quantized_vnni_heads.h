// The scales and offsets of a step of four weight rows, as the lanes of their sums want them. The common layouts give
// theirs where they lie; others are expanded to float32, a row at a time. Needs quantized_vnni_sums.h.

namespace umlm::UNIT::vnni {

// Bytes ahead of the current one that are asked for from memory.
inline constexpr int64_t kAhead = 16 << 10;

UMLM_INLINE __m512 join(__m128 a, __m128 b, __m128 c, __m128 d) {
  __m512 out = _mm512_insertf32x4(_mm512_castps128_ps512(a), b, 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(out, c, 2), d, 3);
}

// Lanes 4 * r .. hold the `count` floats of row r from `at` on; 0 behind them.
UMLM_INLINE __m512 four_stored(const uint8_t* const* rows, Type type, int64_t at, int count) {
  const auto mask = static_cast<__mmask8>((1u << count) - 1);
  if (type == Type::f32) {
    auto row = [&](int r) { return _mm_maskz_loadu_ps(mask, reinterpret_cast<const float*>(rows[r]) + at); };
    return join(row(0), row(1), row(2), row(3));
  }
  auto row = [&](int r) { return _mm_maskz_loadu_epi16(mask, reinterpret_cast<const uint16_t*>(rows[r]) + at); };
  const __m256i halves = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi64(row(0), row(1))),
                                                 _mm_unpacklo_epi64(row(2), row(3)), 1);
  if (type == Type::f16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Four weight rows and what belongs to them; rows that do not exist are copies of the last.
template <typename Policy, int C>
struct FourRows {
  static constexpr Heads kHeads = Policy::kHeads;
  static constexpr int kCount = Chunks<C>::kCount;
  const uint8_t* codes[4];
  const uint8_t *scales[4], *offsets[4];  // arrays of floats
  Type type;
  bool has_offsets;
  int64_t groups;
  // blocks
  int step_bytes, tail_bytes;
  bool stored;
  __m512 zero;
  __m512i words;

  FourRows(const Product& p, int64_t n, float* scratch) : type(Type::f32), groups(p.groups) {
    has_offsets = umlm::UNIT::has_offsets(p.w.layout, p.codes);
    for (int r = 0; r < 4; ++r) {
      const int64_t row = n + r < p.w.rows ? n + r : p.w.rows - 1;
      codes[r] = p.w.weight + row * p.w.row_bytes;
      if constexpr (kHeads == Heads::arrays) {
        const int64_t item = p.w.scale_type == Type::f32 ? 4 : 2;
        scales[r] = p.w.scales + row * p.groups * item, offsets[r] = p.w.biases + row * p.groups * item;
      } else if constexpr (kHeads == Heads::other) {
        const RowScales own = expand(p.w, p.codes, row, scratch + r * 2 * scale_room(p.w));
        scales[r] = reinterpret_cast<const uint8_t*>(own.scales);
        offsets[r] = reinterpret_cast<const uint8_t*>(own.offsets);
      }
    }
    if constexpr (kHeads == Heads::arrays) type = p.w.scale_type;
    if constexpr (kHeads == Heads::blocks) find_heads(p);
  }

  // Which 16-bit words of a row's step are the heads of its blocks: lane 4 * j + r is for block j, in any row.
  void find_heads(const Product& p) {
    const int bytes = block_shape(p.w.layout).bytes;
    step_bytes = 4 * bytes, tail_bytes = static_cast<int>(p.groups % 4) * bytes;
    zero = _mm512_set1_ps(p.codes.zero), stored = stores_offsets(p.w.layout);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_mullo_epi32(_mm512_srli_epi32(lane, 2), _mm512_set1_epi32(bytes / 2));
    words = _mm512_or_si512(first, _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(1)), 16));
  }

  template <bool kWhole>
  UMLM_INLINE void at(const Spread<C>& spread, int64_t step, __m512* scale, __m512* offset) const {
    if constexpr (kHeads == Heads::blocks) {
      block_heads<kWhole>(step, scale, offset);
    } else {
      const int64_t first = step * kCount, left = kWhole ? kCount : groups - first;
      auto values = [&](const uint8_t* const* rows, __m512* out) __attribute__((always_inline)) {
        const int low = static_cast<int>(left < 4 ? left : 4);
        const __m512 more = C == 16 ? four_stored(rows, type, first + 4, left <= 4 ? 0 : static_cast<int>(left - 4))
                                    : _mm512_setzero_ps();
        spread.each(four_stored(rows, type, first, low), more, out);
      };
      values(scales, scale);
      if (has_offsets) values(offsets, offset);
    }
  }

  template <bool kWhole>
  UMLM_INLINE void block_heads(int64_t step, __m512* scale, __m512* offset) const {
    const int bytes = kWhole ? step_bytes : tail_bytes;
    const __mmask64 low = bytes >= 64 ? ~0ull : ~0ull >> (64 - bytes);
    const __mmask64 high = bytes <= 64 ? 0 : bytes >= 128 ? ~0ull : ~0ull >> (128 - bytes);
    __m512i heads = _mm512_setzero_si512();
    for (int r = 0; r < 4; ++r) {
      const uint8_t* from = codes[r] + step * step_bytes;
      heads = _mm512_or_si512(heads, _mm512_maskz_permutex2var_epi16(0x03030303u << (2 * r),
                                                                     _mm512_maskz_loadu_epi8(low, from), words,
                                                                     _mm512_maskz_loadu_epi8(high, from + 64)));
    }
    *scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(heads));
    *offset = stored ? _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(heads, 16)))
                     : _mm512_fnmadd_ps(*scale, zero, _mm512_setzero_ps());
  }
};

}  // namespace umlm::UNIT::vnni
