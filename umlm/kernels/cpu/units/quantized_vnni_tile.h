// A tile of a product in integers: vpdpbusd multiplies the codes of weights with the digits of fixed-point activations
// (quantized_vnni_prepare.h), exactly; one multiply-add a step adds them to float32 sums. Needs
// quantized_vnni_prepare.h.

#include <type_traits>

namespace umlm::UNIT::vnni {

// Loops over registers, which must not end up in memory.
#define UMLM_INLINE [[gnu::always_inline]] inline

// A loop over weight rows: what is shared.
struct Product {
  const QuantizedMatrix& w;
  const Operand& x;
  const LaneScales lanes;
  const Codes codes;
  const int64_t groups, steps;
  const int64_t step_bytes;  // on average
  float* out;
  int64_t stride;
};

// sums[i][r] += codes of weight row r times digit d of a step of activation row i, those `stride` apart. Rows take
// turns, so that no product waits for the one before.
template <int I, int R>
UMLM_INLINE void add_digit(const __m512i (&codes)[R][kVectors], const uint8_t* digits, int64_t stride, int d,
                      __m512i (&sums)[I][R]) {
  for (int v = 0; v < kVectors; ++v) {
    for (int i = 0; i < I; ++i) {
      const __m512i digit = _mm512_loadu_si512(digits + i * stride + 64 * (kVectors * d + v));
      for (int r = 0; r < R; ++r) {
        sums[i][r] = _mm512_dpbusd_epi32(sums[i][r], codes[r][v], digit);
      }
    }
  }
}

template <int I, int R>
UMLM_INLINE void shift_digit(__m512i (&sums)[I][R]) {
  for (int i = 0; i < I; ++i) {
    for (int r = 0; r < R; ++r) {
      sums[i][r] = _mm512_slli_epi32(sums[i][r], 8);
    }
  }
}

// out[i][r] = codes of weight row r times the values of a step of activation row i, in their unit.
template <bool kSmallCodes, int I, int R>
UMLM_INLINE void step_sums(const __m512i (&codes)[R][kVectors], const uint8_t* digits, int64_t stride,
                           __m512 (&out)[I][R]) {
  __m512i top[I][R] = {}, rest[I][R] = {};
  add_digit(codes, digits, stride, 0, kSmallCodes ? rest : top);
  if (kSmallCodes) shift_digit(rest);
  add_digit(codes, digits, stride, 1, rest);
  shift_digit(rest);
  add_digit(codes, digits, stride, 2, rest);
  for (int i = 0; i < I; ++i) {
    for (int r = 0; r < R; ++r) {
      out[i][r] = _mm512_cvtepi32_ps(rest[i][r]);
      if (!kSmallCodes) {
        out[i][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(top[i][r]), _mm512_set1_ps(65536), out[i][r]);
      }
    }
  }
}

// out[i * stride + r] = the sum over lanes of sums[i * R + r]
template <int R, int M>
UMLM_INLINE void store_totals(const __m512* sums, float* out, int64_t stride) {
  constexpr int kCount = R * M;
  alignas(16) float totals[(kCount + 3) / 4 * 4];
  auto lanes = [&](int i) __attribute__((always_inline)) {
    __m512 sum = i < kCount ? sums[i] : _mm512_setzero_ps();
    asm("" : "+v"(sum));  // nothing around may mix with these sums
    return (Lanes)sum;
  };
#pragma GCC unroll 4
  for (int i = 0; i < kCount; i += 4) {
    sum_lanes(lanes(i), lanes(i + 1), lanes(i + 2), lanes(i + 3), totals + i);
  }
  asm volatile("" : : "r"(totals) : "memory");
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i) {
    __builtin_memcpy(out + i * stride, totals + i * R, R * sizeof(float));
  }
}

// R weight rows, as source(r, step, codes) gives them, times M activation rows from m on.
template <bool kSmallCodes, int R, int M, typename Source>
UMLM_INLINE void tile(const Product& p, const Source& source, const RowScales* scales, int64_t m, float* out) {
  const Operand& x = p.x;
  __m512 sums[R * M];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < M; ++i) {
      sums[i * R + r] = offset_sums(scales[r].offsets, x, m + i, p.groups);
    }
  }
  const uint8_t* digits = x.digits + m * x.digits_stride;
  const float* units = x.units + m * x.units_stride;
  auto one = [&](int64_t step, auto whole) __attribute__((always_inline)) {
    __m512i codes[R][kVectors];
    __m512 scale[R];
    const int64_t first = p.lanes.first(step);
    for (int r = 0; r < R; ++r) {
      source.template decode<decltype(whole)::value>(r, step, codes[r]);
      scale[r] = p.lanes.at(scales[r].scales + first);
    }
    source.prefetch(step, R);
    constexpr int kTogether = M % 3 == 0 && R <= 2 ? 3 : M % 2 == 0 ? 2 : 1;
    for (int i = 0; i < M; i += kTogether) {
      __m512 found[kTogether][R];
      step_sums<kSmallCodes>(codes, digits + i * x.digits_stride + step * kStepBytes, x.digits_stride, found);
      for (int j = 0; j < kTogether; ++j) {
        const __m512 unit = _mm512_set1_ps(units[(i + j) * x.units_stride + step]);
        for (int r = 0; r < R; ++r) {
          __m512& sum = sums[(i + j) * R + r];
          sum = _mm512_fmadd_ps(found[j][r], _mm512_mul_ps(scale[r], unit), sum);
        }
      }
    }
  };
  const int64_t whole = source.whole_steps(p.steps);
  for (int64_t step = 0; step < whole; ++step) {
    one(step, std::true_type{});
  }
  if (whole < p.steps) {
    one(whole, std::false_type{});
  }
  store_totals<R, M>(sums, out + m * p.stride, p.stride);
}

}  // namespace umlm::UNIT::vnni
