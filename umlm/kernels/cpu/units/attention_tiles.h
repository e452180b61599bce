// The two products of attention, for tiles of rows and a block of keys.
//
// A score is kLanes sums over dims, one for each lane of the vectors that rows are loaded as, added up in fixed order.
// A few rows take keys as they lie, a lane of a register for each sum; many rows take them packed, a lane for each key,
// and make the same sums one after the other: the bits are the same.

namespace umlm::UNIT {

#if defined(__AVX512F__) || defined(__ARM_NEON)
inline constexpr int kRowTile = 4;  // of 32 registers
#else
inline constexpr int kRowTile = 2;  // of 16
#endif
inline constexpr int kKeyVectors = 2;
inline constexpr int64_t kPanelKeys = kKeyVectors * kLanes;

typedef float Four __attribute__((vector_size(16)));

// The value, of which the compiler knows nothing: what is added to it later is not reordered.
template <typename Vector>
inline Vector held(Vector x) {
#if defined(__x86_64__) && defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

// a b + c, rounded once where the processor can
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (Lanes)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return held(held(a * b) + c);
#endif
}

inline Lanes spread(float x) { return Lanes{} + x; }

inline Lanes get(const float* at) {
  Lanes lanes;
  __builtin_memcpy(&lanes, at, sizeof(lanes));
  return lanes;
}

inline void put(float* at, Lanes lanes) { __builtin_memcpy(at, &lanes, sizeof(lanes)); }

// t[i], in each quarter-register: lane i of a, b, c, d there.
inline void transpose_quarters(Lanes a, Lanes b, Lanes c, Lanes d, Lanes t[4]) {
#if defined(__AVX512F__)
  __m512 w = (__m512)a, x = (__m512)b, y = (__m512)c, z = (__m512)d;
  __m512 wx0 = _mm512_unpacklo_ps(w, x), wx1 = _mm512_unpackhi_ps(w, x);
  __m512 yz0 = _mm512_unpacklo_ps(y, z), yz1 = _mm512_unpackhi_ps(y, z);
  t[0] = (Lanes)_mm512_shuffle_ps(wx0, yz0, 0x44), t[1] = (Lanes)_mm512_shuffle_ps(wx0, yz0, 0xee);
  t[2] = (Lanes)_mm512_shuffle_ps(wx1, yz1, 0x44), t[3] = (Lanes)_mm512_shuffle_ps(wx1, yz1, 0xee);
#elif defined(__AVX2__)
  __m256 w = (__m256)a, x = (__m256)b, y = (__m256)c, z = (__m256)d;
  __m256 wx0 = _mm256_unpacklo_ps(w, x), wx1 = _mm256_unpackhi_ps(w, x);
  __m256 yz0 = _mm256_unpacklo_ps(y, z), yz1 = _mm256_unpackhi_ps(y, z);
  t[0] = (Lanes)_mm256_shuffle_ps(wx0, yz0, 0x44), t[1] = (Lanes)_mm256_shuffle_ps(wx0, yz0, 0xee);
  t[2] = (Lanes)_mm256_shuffle_ps(wx1, yz1, 0x44), t[3] = (Lanes)_mm256_shuffle_ps(wx1, yz1, 0xee);
#else
  Lanes ab0 = __builtin_shuffle(a, b, Words{0, 4, 1, 5}), ab1 = __builtin_shuffle(a, b, Words{2, 6, 3, 7});
  Lanes cd0 = __builtin_shuffle(c, d, Words{0, 4, 1, 5}), cd1 = __builtin_shuffle(c, d, Words{2, 6, 3, 7});
  t[0] = __builtin_shuffle(ab0, cd0, Words{0, 1, 4, 5}), t[1] = __builtin_shuffle(ab0, cd0, Words{2, 3, 6, 7});
  t[2] = __builtin_shuffle(ab1, cd1, Words{0, 1, 4, 5}), t[3] = __builtin_shuffle(ab1, cd1, Words{2, 3, 6, 7});
#endif
}

inline Four quarter(const Lanes& lanes, int i) {
  Four four;
  __builtin_memcpy(&four, reinterpret_cast<const char*>(&lanes) + 16 * i, 16);
  return four;
}

// Sums over the lanes of four vectors: lanes of a quarter in order, then quarters in order.
inline Four sums_over_lanes(const Lanes (&v)[4]) {
  Lanes t[4];
  transpose_quarters(v[0], v[1], v[2], v[3], t);
  const Lanes quarters = held(held(held(t[0] + t[1]) + t[2]) + t[3]);
  Four total = quarter(quarters, 0);
  for (int i = 1; i < kLanes / 4; ++i) {
    total = held(total + quarter(quarters, i));
  }
  return total;
}

// Values that one load takes, as kVectors vectors. Pairs of bf16 are split into the even and the odd ones.
template <Type kType>
struct Step {
  static constexpr int kVectors = kType == Type::bf16 ? 2 : 1;
  static constexpr int kValues = kVectors * kLanes;

  static int64_t count(int64_t dims) { return (dims + kValues - 1) / kValues; }

  // Where dim d lies among the lanes of a row's vectors.
  static int64_t place(int64_t d) {
    if constexpr (kVectors == 1) return d;
    return d / kValues * kValues + d % 2 * kLanes + d % kValues / 2;
  }

  // The rest of a step that reaches beyond dims is 0.
  template <bool kWhole>
  static void load(const void* row, int64_t step, int64_t dims, Lanes* out) {
    const int64_t at = step * kValues;
    if constexpr (kVectors == 2) {
      const Words pairs = load_pairs<kWhole>(row, at, dims);
      out[0] = (Lanes)(pairs << 16);
      out[1] = (Lanes)(pairs & 0xffff0000u);
    } else if (kWhole || at + kValues <= dims) {
      out[0] = umlm::UNIT::load<kType>(row, at);
    } else {
      out[0] = load_part<kType>(row, at, dims - at);
    }
  }

  template <bool kWhole>
  static Words load_pairs(const void* row, int64_t at, int64_t dims) {
    const uint16_t* from = static_cast<const uint16_t*>(row) + at;
    Words pairs = {};
    if (kWhole || at + kValues <= dims) {
      __builtin_memcpy(&pairs, from, sizeof(pairs));
    } else {
#if defined(__AVX512BW__)
      pairs = (Words)_mm512_maskz_loadu_epi16((1u << (dims - at)) - 1, from);
#else
      uint16_t values[kValues] = {};
      __builtin_memcpy(values, from, (dims - at) * 2);
      __builtin_memcpy(&pairs, values, sizeof(pairs));
#endif
    }
    return pairs;
  }
};

// scores[r * kBlockKeys + j] = q[r] . keys[j] for j in [begin, end), rounded outwards to fours.
template <Type kType, int kRows, bool kWhole>
void scores_of_few(const float* q, int64_t stride, const void* const* keys, int64_t dims, int64_t begin, int64_t end,
                   float* scores) {
  const int64_t steps = Step<kType>::count(dims);
  constexpr int kVectors = Step<kType>::kVectors;
  for (int64_t j = begin / 4 * 4; j < end; j += 4) {
    Lanes sums[kRows][4] = {};
    for (int64_t step = 0; step < steps; ++step) {
      const float* part = q + step * kVectors * kLanes;
      for (int key = 0; key < 4; ++key) {
        Lanes values[kVectors];
        Step<kType>::template load<kWhole>(keys[j + key], step, dims, values);
        for (int i = 0; i < kVectors; ++i) {
          for (int r = 0; r < kRows; ++r) {
            sums[r][key] = fused(get(part + r * stride + i * kLanes), values[i], sums[r][key]);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const Four four = sums_over_lanes(sums[r]);
      __builtin_memcpy(scores + r * kBlockKeys + j, &four, sizeof(four));
    }
  }
}

// The same from packed keys, kPanelKeys at a time: value (lane, vector) of them together, and q in that order.
template <int kRows>
void scores_of_many(const float* q, int64_t stride, const float* packed, int64_t vectors, int64_t begin, int64_t end,
                    float* scores) {
  for (int64_t j = begin / kPanelKeys * kPanelKeys; j < end; j += kPanelKeys) {
    Lanes quarter[kRows][kKeyVectors], total[kRows][kKeyVectors];
    const float *key = packed + j * vectors * kLanes, *value = q;
    for (int lane = 0; lane < kLanes; ++lane) {
      Lanes sums[kRows][kKeyVectors] = {};
      for (int64_t c = 0; c < vectors; ++c, key += kPanelKeys, ++value) {
        Lanes keys[kKeyVectors];
        for (int i = 0; i < kKeyVectors; ++i) keys[i] = get(key + i * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const Lanes x = spread(value[r * stride]);
          for (int i = 0; i < kKeyVectors; ++i) sums[r][i] = fused(x, keys[i], sums[r][i]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kKeyVectors; ++i) {
          quarter[r][i] = lane % 4 == 0 ? sums[r][i] : held(quarter[r][i] + sums[r][i]);
          if (lane % 4 == 3) total[r][i] = lane == 3 ? quarter[r][i] : held(total[r][i] + quarter[r][i]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kKeyVectors; ++i) put(scores + r * kBlockKeys + j + i * kLanes, total[r][i]);
    }
  }
}

// Pack keys [begin, end) of a block, rounded outwards to fours, for scores_of_many.
template <Type kType>
void pack_keys(const void* const* keys, int64_t dims, int64_t begin, int64_t end, float* packed) {
  constexpr int kVectors = Step<kType>::kVectors;
  const int64_t steps = Step<kType>::count(dims), vectors = steps * kVectors;
  for (int64_t j = begin / 4 * 4; j < end; j += 4) {
    float* panel = packed + j / kPanelKeys * kPanelKeys * vectors * kLanes + j % kPanelKeys;
    for (int64_t step = 0; step < steps; ++step) {
      Lanes values[4][kVectors], t[4];
      for (int key = 0; key < 4; ++key) Step<kType>::template load<false>(keys[j + key], step, dims, values[key]);
      for (int i = 0; i < kVectors; ++i) {
        transpose_quarters(values[0][i], values[1][i], values[2][i], values[3][i], t);
        for (int lane = 0; lane < kLanes; ++lane) {
          const Four four = quarter(t[lane % 4], lane / 4);
          __builtin_memcpy(panel + (lane * vectors + step * kVectors + i) * kPanelKeys, &four, sizeof(four));
        }
      }
    }
  }
}

// sums[r] = sums[r] * decay[r] + sum over j in [begin, end) of weights[r][j] values[j], for kSteps steps from `first`.
template <Type kType, int kRows, int kSteps, bool kWhole>
void add_weighted(const float* weights, const float* decay, const void* const* values, int64_t dims, int64_t first,
                  int64_t begin, int64_t end, float* sums, int64_t stride) {
  constexpr int kVectors = Step<kType>::kVectors, kAll = kSteps * kVectors;
  Lanes total[kRows][kAll];
  sums += first * kVectors * kLanes;
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kAll; ++i) total[r][i] = held(get(sums + r * stride + i * kLanes) * spread(decay[r]));
  }
  for (int64_t j = begin; j < end; ++j) {
    for (int step = 0; step < kSteps; ++step) {
      Lanes value[kVectors];
      Step<kType>::template load<kWhole>(values[j], first + step, dims, value);
      for (int r = 0; r < kRows; ++r) {
        const Lanes weight = spread(weights[r * kBlockKeys + j]);
        for (int i = 0; i < kVectors; ++i) {
          Lanes& sum = total[r][step * kVectors + i];
          sum = fused(weight, value[i], sum);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kAll; ++i) put(sums + r * stride + i * kLanes, total[r][i]);
  }
}

}  // namespace umlm::UNIT
