// Activations as fixed-point numbers for integer products: the 128 values of a step are their unit times integers of
// 24, 16 or 8 bits, which are kept as so many signed digits of base 256. Sums are those of the fixed-point values, so
// that scale * code and offset err alike. Needs quantized_vnni_policies.h and quantized_scales_avx512.h.

#include <type_traits>

namespace umlm::UNIT::vnni {

inline constexpr int kMostDigits = 3;
// One digit of a step of one row; the highest digit comes first.
inline constexpr int64_t kDigitBytes = kVectors * 64;

inline int64_t steps_of(const QuantizedMatrix& w) { return (w.columns + kValues - 1) / kValues; }

inline int64_t bytes_of_row(const QuantizedMatrix& w) {
  return steps_of(w) * (kMostDigits * kDigitBytes + sizeof(float)) + padded_groups(w) * sizeof(float);
}

inline Operand operand(const QuantizedMatrix& w, const void* source, Type type, int count, int64_t rows,
                       void* scratch) {
  const int64_t steps = steps_of(w), stride = steps * count * kDigitBytes;
  auto* digits = static_cast<uint8_t*>(scratch);
  auto* sums = reinterpret_cast<float*>(digits + rows * stride);
  const float* units = sums + rows * padded_groups(w);
  return {.rows = rows, .columns = w.columns, .source = source, .source_type = type, .num_digits = count,
          .digits = digits, .units = units, .sums = sums, .digits_stride = stride, .units_stride = steps,
          .sums_stride = padded_groups(w)};
}

// Natural order to a policy's: bytes move within 16, then whole lanes.
template <typename Policy>
struct Order {
  Bytes64 within;
  alignas(64) int lanes[kVectors][16];
  bool fits = true;  // whether the order can be had like this
  constexpr Order() : within{}, lanes{} {
    int taken[kValues / 16] = {};
    for (int v = 0; v < kVectors; ++v) {
      for (int lane = 0; lane < 16; ++lane) {
        const int piece = Policy::source(v, 4 * lane) / 16, slot = taken[piece]++;
        lanes[v][lane] = 4 * piece + slot;
        for (int i = 0; i < 4; ++i) {
          const int source = Policy::source(v, 4 * lane + i);
          if (piece == 0) {
            for (int q = 0; q < 4; ++q) within.bytes[16 * q + 4 * slot + i] = static_cast<uint8_t>(source);
          }
          fits = fits && source == 16 * piece + within.bytes[4 * slot + i];
        }
      }
    }
  }
};

template <typename Policy>
inline constexpr Order<Policy> kOrder{};

// The unit of 128 values and its reciprocal, from the bits of the greatest magnitude. With three digits it is a power of
// two, so that nothing but the cut after the last digit is lost.
struct Unit {
  float size, reciprocal;
  Unit(uint32_t most, int digits) {
    if (digits < kMostDigits && most < 0x7f800000 && most >= 24u << 23) {
      const float greatest = digits == 1 ? 127 : 127 * 256 + 127;
      size = bits_to_float(most) / greatest, reciprocal = greatest / bits_to_float(most);
      return;
    }
    // no less than 2^-103, whose reciprocal exists
    most = most < 24u << 23 ? 24u << 23 : most;
    // up to 127/128 of the next power of two, 2^(e + 1), 24 bits hold the values over 2^(e - 22)
    const uint32_t exponent = (most + 0x20000) >> 23;
    const bool finite = most < 0x7f800000;
    size = bits_to_float(finite ? (exponent - 22) << 23 : 0x7fc00000);  // not a number, nor are the products
    reciprocal = bits_to_float(finite ? (276 - exponent) << 23 : 0);
  }
};

inline Unit unit_of(const __m512* values, int digits) {
  __m512i most = _mm512_setzero_si512();
  for (int i = 0; i < kValues / 16; ++i) {
    most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(values[i]), _mm512_set1_epi32(0x7fffffff)));
  }
  return Unit(_mm512_reduce_max_epu32(most), digits);
}

// The digits of 64 integers: out[d], the d-th digits in natural order.
inline void split(const __m512i* integers, __m512i* out) {
  const __m512i half = _mm512_set1_epi32(0x808080);
  const __m512i gather = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, 3, 7, 11, 15));
  __m512i four[4];
  for (int i = 0; i < 4; ++i) {
    // 128 more in every digit and back without carries: bytes from -128 to 127
    four[i] = _mm512_xor_si512(_mm512_add_epi32(integers[i], half), half);
    four[i] = _mm512_shuffle_epi8(four[i], gather);
  }
  __m512i low[2], high[2];
  for (int i = 0; i < 2; ++i) {
    low[i] = _mm512_unpacklo_epi32(four[2 * i], four[2 * i + 1]);
    high[i] = _mm512_unpackhi_epi32(four[2 * i], four[2 * i + 1]);
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  out[0] = _mm512_permutexvar_epi32(order, _mm512_unpacklo_epi64(low[0], low[1]));
  out[1] = _mm512_permutexvar_epi32(order, _mm512_unpackhi_epi64(low[0], low[1]));
  out[2] = _mm512_permutexvar_epi32(order, _mm512_unpacklo_epi64(high[0], high[1]));
}

// sums[i] = the sum of values i of 16.
template <typename Policy>
inline void prepare_row(const QuantizedMatrix& w, const Operand& x, int64_t m, float* sums) {
  static_assert(kOrder<Policy>.fits);
  const __m512i within = kOrder<Policy>.within;
  const int64_t steps = steps_of(w), end = (m + 1) * x.columns;
  auto* digits = const_cast<uint8_t*>(x.digits) + m * x.digits_stride;
  auto* units = const_cast<float*>(x.units) + m * x.units_stride;
  const int skipped = kMostDigits - x.num_digits;
  for (int64_t step = 0; step < steps; ++step, digits += x.num_digits * kDigitBytes, sums += kValues / 16) {
    __m512 values[8];
    for (int i = 0; i < 8; ++i) {
      values[i] = load_values(x, m * x.columns + step * kValues + 16 * i, end);
    }
    const Unit unit = unit_of(values, x.num_digits);
    units[step] = unit.size;
    __m512i parts[2][kMostDigits];
    for (int half = 0; half < 2; ++half) {
      __m512i integers[4];
      Lanes found[4];
      for (int i = 0; i < 4; ++i) {
        integers[i] = _mm512_cvtps_epi32(_mm512_mul_ps(values[4 * half + i], _mm512_set1_ps(unit.reciprocal)));
        found[i] = (Lanes)_mm512_cvtepi32_ps(integers[i]);
      }
      sum_lanes(found[0], found[1], found[2], found[3], sums + 4 * half);
      _mm_storeu_ps(sums + 4 * half, _mm_mul_ps(_mm_loadu_ps(sums + 4 * half), _mm_set1_ps(unit.size)));
      split(integers, parts[half]);
    }
    for (int d = skipped; d < kMostDigits; ++d) {
      __m512i first = _mm512_shuffle_epi8(parts[0][d], within), second = _mm512_shuffle_epi8(parts[1][d], within);
      for (int v = 0; v < kVectors; ++v) {
        const __m512i lanes = _mm512_load_si512(kOrder<Policy>.lanes[v]);
        _mm512_storeu_si512(digits + (d - skipped) * kDigitBytes + 64 * v, _mm512_permutex2var_epi32(first, lanes, second));
      }
    }
  }
}

inline void prepare(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end) {
  auto* sixteens = static_cast<float*>(__builtin_alloca(steps_of(w) * (kValues / 16) * sizeof(float)));
  for (int64_t m = begin; m < end; ++m) {
    with_policy(w, [&](auto* policy) { prepare_row<std::remove_pointer_t<decltype(policy)>>(w, x, m, sixteens); });
    sum_groups(w, sixteens, const_cast<float*>(x.sums) + m * x.sums_stride);
  }
}

}  // namespace umlm::UNIT::vnni
