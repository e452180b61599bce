// Short convolutions of channels, vectors of which lie side by side; and the table of all recurrent kernels.

namespace umlm::UNIT {

// Tokens that are widened together.
inline constexpr int64_t kConvTokens = 16;

// weights[j] of the channels, one tap after the other.
inline void take_weights(const ShortConv& a, int64_t channel, int64_t count, float (*weights)[kConvChannels]) {
  alignas(64) float rows[kConvChannels * kMostTaps];
  widen(element(a.weight, a.weight_type, channel * a.taps), a.weight_type, count * a.taps, rows);
  for (int64_t j = 0; j < a.taps; ++j) {
    for (int64_t c = 0; c < count; ++c) weights[j][c] = rows[c * a.taps + j];
  }
}

inline void short_conv(const ShortConv& a, int64_t request, int64_t begin, int64_t end, int64_t channel) {
  alignas(64) float weights[kMostTaps][kConvChannels] = {}, bias[kConvChannels] = {}, out[kConvChannels];
  alignas(64) float window[kMostTaps - 1 + kConvTokens][kConvChannels] = {};
  const int64_t kept = a.taps - 1, left = a.channels - channel, count = left < kConvChannels ? left : kConvChannels;
  take_weights(a, channel, count, weights);
  if (a.bias != nullptr) widen(element(a.bias, a.bias_type, channel), a.bias_type, count, bias);
  const int64_t state = request * kept * a.channels + channel;
  for (int64_t j = 0; j < kept; ++j) {
    widen(element(a.states, a.state_type, state + j * a.channels), a.state_type, count, window[j]);
  }
  for (int64_t first = begin; first < end; first += kConvTokens) {
    const int64_t tokens = end - first < kConvTokens ? end - first : kConvTokens;
    for (int64_t i = 0; i < tokens; ++i) {
      widen(element(a.x.data, a.x.type, (first + i) * a.x.stride + channel), a.x.type, count, window[kept + i]);
      for (int64_t c = 0; c < count; c += kLanes) {
        Lanes sum = get(bias + c);
        for (int64_t j = 0; j <= kept; ++j) sum = fused(get(weights[j] + c), get(window[i + j] + c), sum);
        put(out + c, sum);
      }
      const void* at = element(a.out, a.x.type, (first + i) * a.channels + channel);
      narrow(out, a.x.type, count, const_cast<void*>(at));
    }
    __builtin_memmove(window[0], window[tokens], kept * sizeof(window[0]));
  }
  for (int64_t j = 0; j < kept; ++j) {
    const void* at = element(a.new_states, a.state_type, state + j * a.channels);
    narrow(window[j], a.state_type, count, const_cast<void*>(at));
  }
}

inline constexpr RecurrenceKernels recurrence_kernels = {delta_scratch, gated_delta, scan_scratch, selective_scan,
                                                         short_conv};

}  // namespace umlm::UNIT
