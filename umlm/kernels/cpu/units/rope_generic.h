// Rotary positions.

namespace umlm::UNIT {

inline void turns(int32_t position, const float* inv_freq, int64_t half, float scale, float* table) {
  const float place = static_cast<float>(position);
  for (int64_t i = 0; i < half; ++i) {
    float sine, cosine;
    sine_cosine(place * inv_freq[i], &sine, &cosine);
    table[i] = cosine * scale;
    table[half + i] = sine * scale;
  }
}

inline void rope_rows(const void* x, Type type, int64_t heads, int64_t dims, int64_t half, const float* table,
                      bool back, float* scratch, void* out) {
  const float sign = back ? -1 : 1;
  for (int64_t head = 0; head < heads; ++head) {
    widen(element(x, type, head * dims), type, dims, scratch);
    for (int64_t i = 0; i < half; ++i) {
      const float first = scratch[i], second = scratch[half + i];
      const float cosine = table[i], sine = table[half + i] * sign;
      scratch[i] = first * cosine - second * sine;
      scratch[half + i] = second * cosine + first * sine;
    }
    narrow(scratch, type, dims, const_cast<uint8_t*>(element(out, type, head * dims)));
  }
}

inline constexpr RopeKernels rope_kernels = {turns, rope_rows};

}  // namespace umlm::UNIT
