// Sums of products in integers (vpdpbusd: unsigned codes of weights times signed digits of fixed-point activations) and
// how they become float32. All sums over the values that share a scale, a chunk, are exact, so their order is free.
// Chunk j of every step adds to the j-th sum of an output, one multiply-add for its scale and one for its offset, and
// the sums of the chunks of a step are added at last, in order: that is the whole arithmetic, for one row of
// activations as for hundreds. Needs quantized_vnni_prepare.h.

#include <type_traits>

namespace umlm::UNIT::vnni {

// Loops over registers, which must not end up in memory.
#define UMLM_INLINE [[gnu::always_inline]] inline

// A loop over weight rows: what is shared.
struct Product {
  const QuantizedMatrix& w;
  const Operand& x;
  const Codes codes;
  const int64_t groups, steps;
  float* out;
  int64_t stride;
};

// Chunks of C values: how many a step has, and how many vectors hold those of four weight rows.
template <int C>
struct Chunks {
  static constexpr int kCount = kValues / C, kVectors = C < 32 ? 2 : 1;
  // Chunk of lane 4 * j + r of vector v, r being the weight row.
  static constexpr int of(int v, int j) { return C == 16 ? 2 * j + v : j * kCount / 4; }
};

// Addition that the compiler leaves where it is.
UMLM_INLINE __m512 add(__m512 a, __m512 b) {
  __m512 sum = _mm512_add_ps(a, b);
  asm("" : "+v"(sum));
  return sum;
}

UMLM_INLINE __m512i add_dot(__m512i sum, const __m512i* codes, const uint8_t* digit) {
  sum = _mm512_dpbusd_epi32(sum, codes[0], _mm512_loadu_si512(digit));
  return _mm512_dpbusd_epi32(sum, codes[1], _mm512_loadu_si512(digit + 64));
}

// Integers by lane (lane i of row r: eight values) to sums over chunks: lane 4 * j + r of out[v], see Chunks.
template <int C>
UMLM_INLINE void reduce(const __m512i (&rows)[4], __m512i* out) {
  if constexpr (C == 16) {
    auto pairs = [](__m512i a, __m512i b) __attribute__((always_inline)) {
      const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
      return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                              _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
    };
    const __m512 first = _mm512_castsi512_ps(pairs(rows[0], rows[1]));
    const __m512 second = _mm512_castsi512_ps(pairs(rows[2], rows[3]));
    out[0] = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88));
    out[1] = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0xdd));
  } else {
    __m512i first = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
    __m512i second = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
    __m512i sum = _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
    if constexpr (C >= 64) sum = _mm512_add_epi32(sum, _mm512_shuffle_i32x4(sum, sum, 0xb1));
    if constexpr (C == 128) sum = _mm512_add_epi32(sum, _mm512_shuffle_i32x4(sum, sum, 0x4e));
    out[0] = sum;
  }
}

// The product in the activations' unit: top is the first of three digits, rest the others.
template <int D>
UMLM_INLINE __m512 to_float(__m512i top, __m512i rest) {
  const __m512 low = _mm512_cvtepi32_ps(rest);
  return D < 3 ? low : _mm512_fmadd_ps(_mm512_cvtepi32_ps(top), _mm512_set1_ps(65536), low);
}

// found[v] = sums over the chunks of one step: four weight rows' codes times one row's digits.
template <int C, int D>
UMLM_INLINE void step_sums(const __m512i (&codes)[4][kVectors], const uint8_t* digits, __m512* found) {
  __m512i top[4], rest[4], top_sums[2] = {}, sums[2];
  for (int r = 0; r < 4; ++r) {
    __m512i first = add_dot(_mm512_setzero_si512(), codes[r], digits);
    top[r] = first;
    if constexpr (D == 2) first = add_dot(_mm512_slli_epi32(first, 8), codes[r], digits + kDigitBytes);
    if constexpr (D == 3) {
      first = _mm512_slli_epi32(add_dot(_mm512_setzero_si512(), codes[r], digits + kDigitBytes), 8);
      first = add_dot(first, codes[r], digits + 2 * kDigitBytes);
    }
    rest[r] = first;
  }
  reduce<C>(rest, sums);
  if constexpr (D == 3) reduce<C>(top, top_sums);
  for (int v = 0; v < Chunks<C>::kVectors; ++v) found[v] = to_float<D>(top_sums[v], sums[v]);
}

// The values of a step's chunks in the order of `reduce`.
template <int C>
struct Spread {
  __m512i own[2], shared[2];
  Spread() {
    alignas(64) int of_own[2][16], of_shared[2][16];
    for (int v = 0; v < 2; ++v) {
      for (int lane = 0; lane < 16; ++lane) {
        const int chunk = Chunks<C>::of(v, lane / 4);
        of_own[v][lane] = chunk / 4 * 16 + lane % 4 * 4 + chunk % 4;
        of_shared[v][lane] = chunk;
      }
      own[v] = _mm512_load_si512(of_own[v]);
      shared[v] = _mm512_load_si512(of_shared[v]);
    }
  }
  // Four rows' own: those of row r in lanes 4 * r .. of low, and of high where there are more.
  UMLM_INLINE void each(__m512 low, __m512 high, __m512* out) const {
    if constexpr (C == 16) {
      out[0] = _mm512_permutex2var_ps(low, own[0], high);
      out[1] = _mm512_permutex2var_ps(low, own[1], high);
    } else {
      out[0] = _mm512_permutexvar_ps(own[0], low);
    }
  }
  // One row's, for all four.
  UMLM_INLINE void all(const float* values, __m512* out) const {
    const __m512 eight = _mm512_castps256_ps512(_mm256_loadu_ps(values));
    for (int v = 0; v < Chunks<C>::kVectors; ++v) out[v] = _mm512_permutexvar_ps(shared[v], eight);
  }
};

// Chunk k of four weight rows, as `reduce` has them, to four floats at out + k * stride.
template <int C>
UMLM_INLINE void put_chunks(const __m512* values, float* out, int64_t stride) {
#pragma GCC unroll 8
  for (int k = 0; k < Chunks<C>::kCount; ++k) {
    const int j = C == 16 ? k / 2 : k * 4 / Chunks<C>::kCount;
    const __m512 from = values[C == 16 ? k % 2 : 0];
    const __m128 part = j == 0   ? _mm512_castps512_ps128(from)
                        : j == 1 ? _mm512_extractf32x4_ps(from, 1)
                        : j == 2 ? _mm512_extractf32x4_ps(from, 2)
                                 : _mm512_extractf32x4_ps(from, 3);
    _mm_store_ps(out + k * stride, part);
  }
}

// out[r] = the sum of row r's chunks, in their order.
template <int C>
UMLM_INLINE __m128 total(const __m512* sums) {
  alignas(16) float chunks[Chunks<C>::kCount * 4];
  put_chunks<C>(sums, chunks, 4);
  __m128 sum = _mm_load_ps(chunks);
#pragma GCC unroll 8
  for (int k = 1; k < Chunks<C>::kCount; ++k) {
    sum = _mm_add_ps(sum, _mm_load_ps(chunks + 4 * k));
    asm("" : "+v"(sum));
  }
  return sum;
}

}  // namespace umlm::UNIT::vnni
