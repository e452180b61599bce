// Quantized products with AVX512 BF16 and VBMI: integers of a group are exact in bf16, sums are float32.
//
// A step takes 64 bytes of a weight row into bf16 vectors of 32 values; vdpbf16ps adds pairs into 16 lanes, and the
// values of a lane share a scale, so that one multiply-add a step applies the scales. Activations are split into
// high + low bf16 parts unless high is exact, and lie in the order in which a step meets them.

#include <immintrin.h>

#include <cstring>
#include <type_traits>

namespace umlm::UNIT {

inline float to_float(uint16_t bits, Type type) {
  return type == Type::f16 ? _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
                           : _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int(bits) << 16)));
}

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

// E8M0 powers of two: 2^(code - 127).
inline __m512 load_e8m0(const uint8_t* base, int64_t first, int count) {
  __m128i codes = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << count) - 1), base + first);
  __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 23);
  // code 0 is 2^-127, below the smallest normal
  __mmask16 zero = _mm512_testn_epi32_mask(bits, bits);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, zero, _mm512_set1_epi32(1 << 22)));
}

// E4M3 without infinities.
inline __m512 load_e4m3(const uint8_t* base, int64_t first, int count) {
  __m128i codes = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << count) - 1), base + first);
  __m512i wide = _mm512_cvtepu8_epi32(codes);
  __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x7f)), 20);
  __m512i sign = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)), 24);
  __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign));
}

inline __m512 scales_at(const QuantizedMatrix& w, int64_t row, int64_t first, int count) {
  int64_t offset = row * (w.columns / w.group) + first;
  switch (w.layout) {
    case Layout::mxfp4:
    case Layout::mxfp8:
      return load_e8m0(w.scales, offset, count);
    case Layout::nvfp4:
      return load_e4m3(w.scales, offset, count);
    default:
      return load_scales(w.scales, w.scale_type, offset, count);
  }
}

// Where a step's lanes find their scales among those of a row, expanded to float32.
struct LaneScales {
  __m512i lanes;
  int count, shift;  // scales of a step; steps that share one, as a power of two

  LaneScales(int group, int values, int (*part)(int)) : count(group < values ? values / group : 1), shift(0) {
    while ((values << shift) < group) {
      ++shift;
    }
    alignas(64) int index[16];
    for (int lane = 0; lane < 16; ++lane) {
      index[lane] = part(lane) * count / 16;
    }
    lanes = _mm512_load_si512(index);
  }

  __m512 operator()(const float* row, int64_t step) const {
    __m128i at = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + (step * count >> shift)));
    return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_castsi128_ps(at)));
  }
};

// nvfp4 has 8 scales in a step of 128 values, more than LaneScales loads: its steps are wider.
struct WideLaneScales : LaneScales {
  using LaneScales::LaneScales;
  __m512 operator()(const float* row, int64_t step) const {
    return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_loadu_ps(row + step * count)));
  }
};

// The scales of row n in float32; the last vector may write up to 15 more.
inline void expand_scales(const QuantizedMatrix& w, int64_t n, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; g += 16) {
    int64_t rest = groups - g;
    _mm512_storeu_ps(out + g, scales_at(w, n, g, rest < 16 ? static_cast<int>(rest) : 16));
  }
}

inline __m512i table(const float (&values)[16]) {
  alignas(64) uint16_t words[32];
  for (int i = 0; i < 32; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i % 16], 4);
    words[i] = static_cast<uint16_t>(bits >> 16);
  }
  return _mm512_load_si512(words);
}

inline constexpr float kIntegers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline constexpr float kSixteens[16] = {0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240};
inline constexpr float kE2M1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};

// 4-bit values: vector k of a step holds the nibbles k, k + 4, k + 8, ...
struct Nibbles {
  static constexpr int kValues = 128, kBytes = 64, kVectors = 4, kParts = 4;
  static constexpr float kOffset = 0;
  static constexpr int kX[4] = {0, 1, 2, 3};
  __m512i values;
  explicit Nibbles(const QuantizedMatrix& w) : values(table(w.layout == Layout::affine4 ? kIntegers : kE2M1)) {}
  static int source(int vector, int word) { return 4 * word + vector; }
  static int part(int lane) { return lane; }
  void decode(__m512i bytes, __m512i* out) const {
    out[0] = _mm512_permutexvar_epi16(bytes, values);
    out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), values);
    out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 8), values);
    out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 12), values);
  }
};

// 8-bit values: each is the sum of its two nibbles' values, two products with the same activations.
struct Bytes {
  static constexpr int kValues = 64, kBytes = 64, kVectors = 2, kParts = 4;
  static constexpr float kOffset = 0;
  static constexpr int kX[4] = {0, 0, 1, 1};
  __m512i units, sixteens;
  explicit Bytes(const QuantizedMatrix&) : units(table(kIntegers)), sixteens(table(kSixteens)) {}
  static int source(int vector, int word) { return 2 * word + vector; }
  static int part(int lane) { return lane; }
  void decode(__m512i bytes, __m512i* out) const {
    out[0] = _mm512_permutexvar_epi16(bytes, units);
    out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), sixteens);
    out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 8), units);
    out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 12), sixteens);
  }
};

// 2-, 3-, 5-, 6-bit values: each becomes the top of a bf16 fraction, 2^bits + value, which is exact.
template <int kBits>
struct Fields {
  static constexpr int kValues = 64, kBytes = 8 * kBits, kVectors = 2, kParts = 2;
  static constexpr float kOffset = 1 << kBits;
  static constexpr int kX[2] = {0, 1};
  __m512i gather, shifts;
  explicit Fields(const QuantizedMatrix&) {
    alignas(64) uint8_t from[64], shift[64];
    for (int i = 0; i < 64; ++i) {
      from[i] = static_cast<uint8_t>(i / 8 * kBits + i % 8 < 64 ? i / 8 * kBits + i % 8 : 63);
      shift[i] = static_cast<uint8_t>((i % 8 * kBits + kBits - 7) & 63);
    }
    gather = _mm512_load_si512(from);
    shifts = _mm512_load_si512(shift);
  }
  static int source(int vector, int word) { return 2 * word + vector; }
  static int part(int lane) { return lane; }
  void decode(__m512i bytes, __m512i* out) const {
    __m512i fields = _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, bytes));
    fields = _mm512_and_si512(fields, _mm512_set1_epi8(((1 << kBits) - 1) << (7 - kBits)));
    __m512i base = _mm512_set1_epi16((127 + kBits) << 7);
    out[0] = _mm512_ternarylogic_epi32(fields, _mm512_set1_epi16(0x00ff), base, 0xea);  // (a & b) | c
    out[1] = _mm512_or_si512(_mm512_srli_epi16(fields, 8), base);
  }
};

// E4M3 bytes, values with 4 significant bits; the smallest are no normal bf16 in place, so go by way of float32.
struct Floats8 {
  static constexpr int kValues = 64, kBytes = 64, kVectors = 2, kParts = 2;
  static constexpr float kOffset = 0;
  static constexpr int kX[2] = {0, 1};
  explicit Floats8(const QuantizedMatrix&) {}
  // vcvtne2ps2bf16 puts 16 values after 16: vector v holds the values 32 v + ...
  static int source(int vector, int word) { return 4 * (word % 16) + 2 * vector + word / 16; }
  static int part(int lane) { return lane % 8 * 2; }
  static __m512 value(__m512i bytes, int byte) {
    __m512i code = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(8 * byte));
    __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x7f)), 20);
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
    __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(scaled), sign));
  }
  void decode(__m512i bytes, __m512i* out) const {
    for (int vector = 0; vector < 2; ++vector) {
      out[vector] = (__m512i)_mm512_cvtne2ps_pbh(value(bytes, 2 * vector + 1), value(bytes, 2 * vector));
    }
  }
};

template <typename Policy>
int64_t steps_of(const QuantizedMatrix& w) {
  return (w.columns + Policy::kValues - 1) / Policy::kValues;
}

inline __m512 dot(__m512 sum, __m512i a, const uint16_t* b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)_mm512_loadu_si512(b));
}

// Bytes ahead of the current one that are asked for from memory.
constexpr int64_t kAhead = 4096;

template <int R, int M>
void add_biases(const QuantizedMatrix& w, const Operand& x, float offset, int64_t n, int64_t m, float* out,
                int64_t stride) {
  const int64_t groups = w.columns / w.group;
  __m512 acc[R][M] = {};
  for (int64_t g = 0; g < groups; g += 16) {
    int count = static_cast<int>(groups - g < 16 ? groups - g : 16);
    for (int r = 0; r < R; ++r) {
      int64_t first = (n + r) * groups + g;
      __m512 bias = load_scales(w.biases, w.scale_type, first, count);
      if (offset != 0) {
        bias = _mm512_fnmadd_ps(load_scales(w.scales, w.scale_type, first, count), _mm512_set1_ps(offset), bias);
      }
      for (int i = 0; i < M; ++i) {
        __m512 sums = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), x.sums + (m + i) * groups + g);
        acc[r][i] = _mm512_fmadd_ps(bias, sums, acc[r][i]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < M; ++i) {
      out[(m + i) * stride + n + r] += _mm512_reduce_add_ps(acc[r][i]);
    }
  }
}

// R weight rows times M activation rows.
template <typename Policy, typename Lanes, int R, int M, bool kSplit>
void tile(const Policy& policy, const Lanes& lanes, const QuantizedMatrix& w, const Operand& x,
          const float* const* scales, int64_t n, int64_t m, float* out, int64_t stride) {
  const int64_t steps = steps_of<Policy>(w), whole = w.row_bytes / Policy::kBytes;
  __m512 acc[R][M];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < M; ++i) {
      acc[r][i] = _mm512_setzero_ps();
    }
  }
  const uint8_t* rows = w.weight + n * w.row_bytes;
  const uint16_t* high[M];
  const uint16_t* low[M];
  for (int i = 0; i < M; ++i) {
    high[i] = x.high + (m + i) * x.stride;
    low[i] = kSplit ? x.low + (m + i) * x.stride : nullptr;
  }
  auto one = [&](int64_t step, __mmask64 mask) {
    __m512i parts[R][Policy::kParts];
    __m512 scale[R];
    for (int r = 0; r < R; ++r) {
      const uint8_t* bytes = rows + r * w.row_bytes + step * Policy::kBytes;
      _mm_prefetch(reinterpret_cast<const char*>(bytes + kAhead), _MM_HINT_T0);
      policy.decode(_mm512_maskz_loadu_epi8(mask, bytes), parts[r]);
      scale[r] = lanes(scales[r], step);
    }
    const int64_t at = step * Policy::kVectors * 32;
    for (int i = 0; i < M; ++i) {
      for (int r = 0; r < R; ++r) {
        __m512 sum = _mm512_setzero_ps();
        for (int p = 0; p < Policy::kParts; ++p) {
          sum = dot(sum, parts[r][p], high[i] + at + 32 * Policy::kX[p]);
          if (kSplit) {
            sum = dot(sum, parts[r][p], low[i] + at + 32 * Policy::kX[p]);
          }
        }
        acc[r][i] = _mm512_fmadd_ps(sum, scale[r], acc[r][i]);
      }
    }
  };
  constexpr __mmask64 all = ~0ull >> (64 - Policy::kBytes);
  for (int64_t step = 0; step < whole; ++step) {
    one(step, all);
  }
  if (whole < steps) {
    one(whole, ~0ull >> (64 - (w.row_bytes - whole * Policy::kBytes)));
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < M; ++i) {
      out[(m + i) * stride + n + r] = _mm512_reduce_add_ps(acc[r][i]);
    }
  }
  if (w.biases != nullptr) {
    add_biases<R, M>(w, x, Policy::kOffset, n, m, out, stride);
  }
}

// All m for the weight rows n .. n + R.
template <typename Policy, typename Lanes, int R, bool kSplit>
void rows(const Policy& policy, const Lanes& lanes, const QuantizedMatrix& w, const Operand& x, int64_t n,
          float* scratch, float* out, int64_t stride) {
  const int64_t groups = w.columns / w.group;
  const float* scales[R];
  for (int r = 0; r < R; ++r) {
    scales[r] = scratch + r * (groups + 16);
    expand_scales(w, n + r, groups, scratch + r * (groups + 16));
  }
  int64_t m = 0;
  for (; m + 6 <= x.rows; m += 6) {
    tile<Policy, Lanes, R, 6, kSplit>(policy, lanes, w, x, scales, n, m, out, stride);
  }
  switch (x.rows - m) {
    case 5: tile<Policy, Lanes, R, 5, kSplit>(policy, lanes, w, x, scales, n, m, out, stride); break;
    case 4: tile<Policy, Lanes, R, 4, kSplit>(policy, lanes, w, x, scales, n, m, out, stride); break;
    case 3: tile<Policy, Lanes, R, 3, kSplit>(policy, lanes, w, x, scales, n, m, out, stride); break;
    case 2: tile<Policy, Lanes, R, 2, kSplit>(policy, lanes, w, x, scales, n, m, out, stride); break;
    case 1: tile<Policy, Lanes, R, 1, kSplit>(policy, lanes, w, x, scales, n, m, out, stride); break;
  }
}

template <typename Policy, typename Lanes, bool kSplit>
void product(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin, int64_t end) {
  const Policy policy(w);
  const Lanes lanes(w.group, Policy::kValues, Policy::part);
  auto* scratch = static_cast<float*>(__builtin_alloca(2 * (w.columns / w.group + 16) * sizeof(float)));
  int64_t n = begin;
  for (; n + 2 <= end; n += 2) {
    rows<Policy, Lanes, 2, kSplit>(policy, lanes, w, x, n, scratch, out, stride);
  }
  if (n < end) {
    rows<Policy, Lanes, 1, kSplit>(policy, lanes, w, x, n, scratch, out, stride);
  }
}

// Call visit(policy type) for the matrix's layout.
template <typename Visit>
auto with_policy(const QuantizedMatrix& w, Visit&& visit) {
  switch (w.layout) {
    case Layout::affine2: return visit(static_cast<Fields<2>*>(nullptr));
    case Layout::affine3: return visit(static_cast<Fields<3>*>(nullptr));
    case Layout::affine5: return visit(static_cast<Fields<5>*>(nullptr));
    case Layout::affine6: return visit(static_cast<Fields<6>*>(nullptr));
    case Layout::affine8: return visit(static_cast<Bytes*>(nullptr));
    case Layout::mxfp8: return visit(static_cast<Floats8*>(nullptr));
    default: return visit(static_cast<Nibbles*>(nullptr));
  }
}

inline int64_t operand_stride(const QuantizedMatrix& w) {
  return with_policy(w, [&](auto* policy) {
    using Policy = std::remove_pointer_t<decltype(policy)>;
    return steps_of<Policy>(w) * Policy::kVectors * 32;
  });
}

inline int64_t prepared_bytes(const QuantizedMatrix& w) {
  return 2 * operand_stride(w) * sizeof(uint16_t) + w.columns / w.group * sizeof(float) + 64;
}

inline Operand operand(const QuantizedMatrix& w, const float* values, int64_t rows, bool exact, void* scratch) {
  int64_t stride = operand_stride(w);
  auto* high = static_cast<uint16_t*>(scratch);
  auto* low = high + rows * stride;
  auto* sums = reinterpret_cast<float*>(low + rows * stride);
  return {rows, w.columns, values, high, exact ? nullptr : low, sums, stride};
}

inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bf16(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline void prepare(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end) {
  with_policy(w, [&](auto* policy) {
    using Policy = std::remove_pointer_t<decltype(policy)>;
    const int64_t groups = w.columns / w.group, steps = steps_of<Policy>(w);
    int place[Policy::kVectors * 32];
    for (int i = 0; i < Policy::kVectors * 32; ++i) {
      place[i] = Policy::source(i / 32, i % 32);
    }
    for (int64_t m = begin; m < end; ++m) {
      const float* row = x.values + m * w.columns;
      auto* high = const_cast<uint16_t*>(x.high) + m * x.stride;
      auto* low = const_cast<uint16_t*>(x.low) + m * x.stride;
      for (int64_t step = 0; step < steps; ++step) {
        int64_t first = step * Policy::kValues;
        for (int i = 0; i < Policy::kVectors * 32; ++i) {
          float value = first + place[i] < w.columns ? row[first + place[i]] : 0.0f;
          int64_t at = step * Policy::kVectors * 32 + i;
          high[at] = to_bf16(value);
          if (x.low != nullptr) {
            low[at] = to_bf16(value - from_bf16(high[at]));
          }
        }
      }
      // sums of the values as the products see them, so that scale * q and bias err alike
      auto* sums = const_cast<float*>(x.sums) + m * groups;
      for (int64_t g = 0; g < groups; ++g) {
        float sum = 0;
        for (int i = 0; i < w.group; ++i) {
          float value = row[g * w.group + i], high = from_bf16(to_bf16(value));
          sum += x.low == nullptr ? high : high + from_bf16(to_bf16(value - high));
        }
        sums[g] = sum;
      }
    }
  });
}

inline void quantized_matmul(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                             int64_t end) {
  with_policy(w, [&](auto* policy) {
    using Policy = std::remove_pointer_t<decltype(policy)>;
    if (w.layout == Layout::nvfp4) {
      return x.low == nullptr ? product<Policy, WideLaneScales, false>(w, x, out, stride, begin, end)
                              : product<Policy, WideLaneScales, true>(w, x, out, stride, begin, end);
    }
    return x.low == nullptr ? product<Policy, LaneScales, false>(w, x, out, stride, begin, end)
                            : product<Policy, LaneScales, true>(w, x, out, stride, begin, end);
  });
}

inline constexpr QuantizedKernels quantized_kernels = {prepared_bytes, operand, prepare, quantized_matmul};

}  // namespace umlm::UNIT
