// Rows of keys and values as pages keep them: floats, or codes of 8 or 4 bits.
//
// A quantized row: for each group of 32 dims (the last may have fewer) a scale and an offset as two bf16; then the
// codes of the dims, up to a multiple of 16. A value is scale * code + offset, rounded once where the processor can.
// In 8 bits a code is a byte. In 4 bits 16 codes are two words of 32 bits, lowest byte first: the code of dim 2k is
// nibble k of the first word, that of dim 2k + 1 nibble k of the second.

namespace umlm::UNIT {

inline constexpr int64_t kGroupDims = 32, kCodeDims = 16, kGroupBytes = 4;
inline constexpr int64_t kCacheLine = 64;

inline int64_t whole_codes(int64_t dims) { return (dims + kCodeDims - 1) / kCodeDims * kCodeDims; }
inline int64_t scale_bytes(int64_t dims) { return (dims + kGroupDims - 1) / kGroupDims * kGroupBytes; }

inline int64_t row_bytes(Kept kind, int64_t dims) {
  switch (kind) {
    case Kept::f32: return dims * 4;
    case Kept::q8: return scale_bytes(dims) + whole_codes(dims);
    case Kept::q4: return scale_bytes(dims) + whole_codes(dims) / 2;
    default: return dims * 2;
  }
}

// The values of codes at .. at + kLanes.
template <int kBits>
inline Lanes opened(const uint8_t* codes, int64_t at, Lanes scale, Lanes offset) {
  if constexpr (kBits == 8) {
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at));
    const Lanes whole = (Lanes)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + at));
    const Lanes whole = (Lanes)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
#else
    const Integers integers = {codes[at], codes[at + 1], codes[at + 2], codes[at + 3]};
    const Lanes whole = __builtin_convertvector(integers, Lanes);
#endif
    return fused(whole, scale, offset);
  } else {
    uint64_t piece;
    __builtin_memcpy(&piece, codes + at / kCodeDims * 8, sizeof(piece));
    typedef uint64_t Pairs __attribute__((vector_size(4 * kLanes)));
    Words shifts;
    for (int i = 0; i < kLanes; ++i) shifts[i] = i / 2 * 4;
    const Words words = (Words)(Pairs{} + (piece >> at % kCodeDims / 2 * 4)) >> shifts;
#if defined(__AVX512F__)
    // a lookup among the 16 values, by the low bits of a lane
    Lanes values;
    for (int i = 0; i < kLanes; ++i) values[i] = static_cast<float>(i);
    return (Lanes)_mm512_permutexvar_ps((__m512i)words, (__m512)fused(values, scale, offset));
#else
    return fused(__builtin_convertvector((Integers)(words & 15), Lanes), scale, offset);
#endif
  }
}

template <int kBits>
inline void open_dims(const uint8_t* group, const uint8_t* codes, int64_t begin, int64_t end, float* out) {
  uint32_t both;
  __builtin_memcpy(&both, group, sizeof(both));
  const Words pair = Words{} + both;
  const Lanes scale = (Lanes)(pair << 16), offset = (Lanes)(pair & 0xffff0000u);
  for (int64_t at = begin; at < end; at += kLanes) put(out + at, opened<kBits>(codes, at, scale, offset));
}

template <int kBits>
inline void open_row(const uint8_t* row, int64_t dims, float* out) {
  const uint8_t* codes = row + scale_bytes(dims);
  int64_t at = 0;
  for (; at + kGroupDims <= dims; at += kGroupDims, row += kGroupBytes) {
    open_dims<kBits>(row, codes, at, at + kGroupDims, out);
  }
  if (at < dims) open_dims<kBits>(row, codes, at, whole_codes(dims), out);
}

inline void prefetch(const void* row, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(row), end = first + bytes;
  for (uintptr_t at = first / kCacheLine * kCacheLine; at < end; at += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(at));
  }
}

// Values of rows [begin, end) as float32 into tile, whole_codes(dims) apart; the rows become those. Of `known` rows
// those a block further on are fetched.
inline void open_rows(const KeptRows& from, int64_t dims, int64_t begin, int64_t end, int64_t known, float* tile,
                      const void** rows) {
  const int64_t stride = whole_codes(dims);
  for (int64_t j = begin; j < end; ++j) {
    if (j + kBlockKeys < known) prefetch(rows[j + kBlockKeys], from.bytes);
    float* out = tile + j * stride;
    const auto* row = static_cast<const uint8_t*>(rows[j]);
    switch (from.kind) {
      case Kept::q8: open_row<8>(row, dims, out); break;
      case Kept::q4: open_row<4>(row, dims, out); break;
      default: widen(row, static_cast<Type>(from.kind), dims, out);
    }
    rows[j] = out;
  }
}

// The nearest integers, halves to the even one; 0 for NaN, and none beyond `most`.
inline Integers nearest(Lanes x, float most) {
  x = x > 0.0f ? x : Lanes{};
  x = x < most ? x : Lanes{} + most;
#if defined(__AVX512F__)
  return (Integers)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (Integers)_mm256_cvtps_epi32((__m256)x);
#elif defined(__SSE2__)
  return (Integers)_mm_cvtps_epi32((__m128)x);
#else
  return (Integers)vcvtnq_s32_f32((float32x4_t)x);
#endif
}

struct Extent {
  float low, high;
  bool finite;
};

inline Extent extent_of(const float* group) {
  Lanes low = get(group), high = low;
  Words special = {};
  for (int64_t i = 0; i < kGroupDims; i += kLanes) {
    const Lanes x = get(group + i);
    low = x < low ? x : low;
    high = larger(x, high);
    special |= (Words)(((Words)x & 0x7f800000u) == 0x7f800000u);
  }
  const Lanes ends[4] = {high, -low, (Lanes)(special & 0x3f800000u)};  // 1.0 for numbers that are not finite
  const Four most = largest_lanes(ends);
  return {-most[1], most[0], most[2] == 0};
}

inline float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// The bf16 next to x, as float32 bits: the one below it for the offset, the one above for a scale, so that the codes
// reach all values of a group.
inline uint32_t below(float x) {
  const uint32_t bits = x == 0.0f ? 0 : __builtin_bit_cast(uint32_t, x);
  return (bits + (bits >> 31 ? 0xffffu : 0)) & 0xffff0000u;
}

inline uint32_t above(float x) { return (__builtin_bit_cast(uint32_t, x) + 0xffffu) & 0xffff0000u; }

// Every fourth byte of eight, from the first on, in two bytes.
inline uint32_t two_bytes(uint64_t x) { return static_cast<uint32_t>((x & 0xff) | (x >> 24 & 0xff00)); }

template <int kBits>
inline void keep_codes(const uint32_t* whole, int64_t count, uint8_t* codes) {
  uint8_t bytes[kGroupDims];
  for (int64_t i = 0; i < kGroupDims; ++i) bytes[i] = static_cast<uint8_t>(whole[i]);
  if constexpr (kBits == 8) {
    __builtin_memcpy(codes, bytes, count);
    return;
  }
  for (int64_t at = 0; at < count; at += kCodeDims, codes += 8) {
    uint64_t eights[2];
    __builtin_memcpy(eights, bytes + at, sizeof(eights));
    for (uint64_t& x : eights) x |= x >> 12;  // two dims further, in the high half of a byte
    const uint32_t words[2] = {two_bytes(eights[0]) | two_bytes(eights[1]) << 16,
                               two_bytes(eights[0] >> 8) | two_bytes(eights[1] >> 8) << 16};
    __builtin_memcpy(codes, words, sizeof(words));
  }
}

// Up to 32 dims become a scale, an offset and codes; what is not finite makes the scale, and all values, NaN.
template <int kBits>
inline void keep_group(const float* values, int64_t count, uint8_t* row, uint8_t* codes) {
  constexpr float kMost = (1 << kBits) - 1;
  alignas(64) float group[kGroupDims];
  alignas(64) uint32_t whole[kGroupDims];
  for (int64_t i = 0; i < count; ++i) group[i] = values[i];
  for (int64_t i = count; i < kGroupDims; ++i) group[i] = values[0];
  const Extent extent = extent_of(group);
  const uint32_t offset = below(extent.low);
  const float step = (extent.high - from_bits(offset)) / kMost;
  const uint32_t scale = extent.finite ? above(step > 0x1p-100f ? step : 0x1p-100f) : 0x7fc00000u;
  const uint32_t both = scale >> 16 | offset;
  __builtin_memcpy(row, &both, sizeof(both));
  const float inverse = 1.0f / from_bits(scale);
  for (int64_t i = 0; i < kGroupDims; i += kLanes) {
    const Integers integers = nearest(held(get(group + i) - from_bits(offset)) * inverse, kMost);
    __builtin_memcpy(whole + i, &integers, sizeof(integers));
  }
  keep_codes<kBits>(whole, whole_codes(count), codes);
}

template <int kBits>
inline void keep_row(const float* values, int64_t dims, uint8_t* row) {
  uint8_t* codes = row + scale_bytes(dims);
  for (int64_t at = 0; at < dims; at += kGroupDims, row += kGroupBytes) {
    keep_group<kBits>(values + at, dims - at < kGroupDims ? dims - at : kGroupDims, row, codes + at * kBits / 8);
  }
}

// Put rows [count, heads, dims] into the places slots[i] of pages; scratch has heads * dims floats.
inline void write_rows(const void* rows, Type type, int64_t count, int64_t heads, int64_t dims, const int32_t* slots,
                       Kept kind, void* pages, float* scratch) {
  const int64_t bytes = row_bytes(kind, dims);
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* from = element(rows, type, i * heads * dims);
    uint8_t* to = static_cast<uint8_t*>(pages) + slots[i] * heads * bytes;
    if (kind == static_cast<Kept>(type)) {
      __builtin_memcpy(to, from, heads * bytes);
      continue;
    }
    widen(from, type, heads * dims, scratch);
    for (int64_t head = 0; head < heads; ++head, to += bytes) {
      const float* values = scratch + head * dims;
      switch (kind) {
        case Kept::q8: keep_row<8>(values, dims, to); break;
        case Kept::q4: keep_row<4>(values, dims, to); break;
        default: narrow(values, static_cast<Type>(kind), dims, to);
      }
    }
  }
}

inline constexpr PageKernels page_kernels = {row_bytes, write_rows};

}  // namespace umlm::UNIT
