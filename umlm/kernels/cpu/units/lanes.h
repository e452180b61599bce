// Vectors as wide as the unit's registers, in the compilers' own vector types, and loads of all dtypes into them.
//
// Sums keep the order that is written here: a multiply-add a step, and trees whose levels are split by shuffles,
// leave the compiler nothing to reorder.

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include <cstdint>

namespace umlm::UNIT {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

inline Lanes from_f16(Halves halves) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_cvtph_ps((__m256i)halves);
#elif defined(__F16C__)
  return (Lanes)_mm256_cvtph_ps((__m128i)halves);
#elif defined(__ARM_NEON)
  return (Lanes)vcvt_f32_f16((float16x4_t)halves);
#else
  Words wide = __builtin_convertvector(halves, Words);
  Words magnitude = wide & 0x7fff, sign = (wide & 0x8000) << 16;
  // the exponent is rebased by a multiplication, which makes subnormals right too
  Words finite = (Words)((Lanes)(magnitude << 13) * 0x1p112f), special = 0x7f800000 | magnitude << 13;
  return (Lanes)((magnitude >= 0x7c00 ? special : finite) | sign);
#endif
}

// Lanes from element `at` on.
template <Type kType>
inline Lanes load(const void* base, int64_t at) {
  if constexpr (kType == Type::f32) {
    Lanes lanes;
    __builtin_memcpy(&lanes, static_cast<const float*>(base) + at, sizeof(lanes));
    return lanes;
  } else {
    Halves halves;
    __builtin_memcpy(&halves, static_cast<const uint16_t*>(base) + at, sizeof(halves));
    return kType == Type::f16 ? from_f16(halves) : (Lanes)(__builtin_convertvector(halves, Words) << 16);
  }
}

// The first `count` lanes, fewer than all; the others are 0.
template <Type kType>
inline Lanes load_part(const void* base, int64_t at, int64_t count) {
  if constexpr (kType == Type::f32) {
    float values[kLanes] = {};
    __builtin_memcpy(values, static_cast<const float*>(base) + at, count * 4);
    return load<kType>(values, 0);
  } else {
    uint16_t values[kLanes] = {};
    __builtin_memcpy(values, static_cast<const uint16_t*>(base) + at, count * 2);
    return load<kType>(values, 0);
  }
}

// Sums over the lanes of four vectors: lane i + lane i + half, for ever smaller halves.
inline void sum_lanes(Lanes a, Lanes b, Lanes c, Lanes d, float* out) {
#if defined(__AVX512F__)
  __m512 w = (__m512)a, x = (__m512)b, y = (__m512)c, z = (__m512)d;
  __m512 wx = _mm512_add_ps(_mm512_shuffle_f32x4(w, x, 0x44), _mm512_shuffle_f32x4(w, x, 0xee));
  __m512 yz = _mm512_add_ps(_mm512_shuffle_f32x4(y, z, 0x44), _mm512_shuffle_f32x4(y, z, 0xee));
  __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(wx, yz, 0x88), _mm512_shuffle_f32x4(wx, yz, 0xdd));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
  all = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), all);
  _mm_storeu_ps(out, _mm512_castps512_ps128(all));
#elif defined(__AVX2__)
  Lanes ab = __builtin_shuffle(a, b, Words{0, 1, 2, 3, 8, 9, 10, 11}) +
             __builtin_shuffle(a, b, Words{4, 5, 6, 7, 12, 13, 14, 15});
  Lanes cd = __builtin_shuffle(c, d, Words{0, 1, 2, 3, 8, 9, 10, 11}) +
             __builtin_shuffle(c, d, Words{4, 5, 6, 7, 12, 13, 14, 15});
  Lanes all = __builtin_shuffle(ab, cd, Words{0, 1, 8, 9, 4, 5, 12, 13}) +
              __builtin_shuffle(ab, cd, Words{2, 3, 10, 11, 6, 7, 14, 15});
  all += __builtin_shuffle(all, Words{1, 0, 3, 2, 5, 4, 7, 6});
  out[0] = all[0], out[1] = all[4], out[2] = all[2], out[3] = all[6];
#else
  Lanes ab = __builtin_shuffle(a, b, Words{0, 1, 4, 5}) + __builtin_shuffle(a, b, Words{2, 3, 6, 7});
  Lanes cd = __builtin_shuffle(c, d, Words{0, 1, 4, 5}) + __builtin_shuffle(c, d, Words{2, 3, 6, 7});
  Lanes all = __builtin_shuffle(ab, cd, Words{0, 2, 4, 6}) + __builtin_shuffle(ab, cd, Words{1, 3, 5, 7});
  __builtin_memcpy(out, &all, sizeof(all));
#endif
}

}  // namespace umlm::UNIT
