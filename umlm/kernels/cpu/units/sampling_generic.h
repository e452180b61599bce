// Passes over a row of logits.

namespace umlm::UNIT {

inline bool block_maxima(const float* values, int64_t count, float* maxima) {
  Words unordered = {};
  for (int64_t first = 0; first < count; first += kSampleBlock) {
    const int64_t size = count - first < kSampleBlock ? count - first : kSampleBlock;
    Lanes best = Lanes{} - __builtin_inff();
    float last = -__builtin_inff();
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      const Lanes next = load<Type::f32>(values, first + i);
      unordered |= (Words)(next != next);
      best = next > best ? next : best;
    }
    for (; i < size; ++i) {
      const float value = values[first + i];
      unordered[0] |= value != value ? 1 : 0;
      last = value > last ? value : last;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      last = best[lane] > last ? best[lane] : last;
    }
    maxima[first / kSampleBlock] = last;
  }
  uint32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    any |= unordered[lane];
  }
  return any != 0;
}

inline void weights(const float* values, int64_t count, float best, float temperature, float floor, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float exponent = (values[i] - best) / temperature;
    const float weight = exp(exponent);
    out[i] = exponent >= floor ? weight : 0.0f;
  }
}

inline void block_weights(const float* values, int64_t count, float best, float temperature, float floor,
                          float* sums) {
  alignas(64) float block[kSampleBlock];
  for (int64_t first = 0; first < count; first += kSampleBlock) {
    const int64_t size = count - first < kSampleBlock ? count - first : kSampleBlock;
    weights(values + first, size, best, temperature, floor, block);
    float sum = 0;
    for (int64_t i = 0; i < size; ++i) {
      sum += block[i];
    }
    sums[first / kSampleBlock] = sum;
  }
}

inline constexpr SamplingKernels sampling_kernels = {block_maxima, weights, block_weights};

}  // namespace umlm::UNIT
