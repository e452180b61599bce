// Functions of one float32 that compilers turn into vector code when a loop calls them: no branches, no calls.
//
// Errors against the exact value, in units of the last place: exp 1, tanh 1.4, erf 1.5, sigmoid 2.5 (of normal
// results), sine_cosine 2. Polynomials are minimax fits of their own, in the remainders of range reduction.

#include <cstdint>

namespace umlm::UNIT {

// The compiler may reorder sums, and where that would cost bits it is held off by a bound that never bites: a minimum
// has to be taken between the two sums.
inline float bounded(float x) { return x > 8.0f ? 8.0f : x; }
inline double bounded(double x) { return x > 8.0 ? 8.0 : x; }

// 2^n for n in -126 .. 127
inline float power_of_two(int n) { return __builtin_bit_cast(float, static_cast<uint32_t>(n + 127) << 23); }

inline float exp(float x) {
  // beyond these the result is 0 or infinity; written so that NaN passes through
  const float z = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float scaled = z * 1.44269504f;
  const int n = static_cast<int>(scaled + (scaled < 0 ? -0.5f : 0.5f));
  const float whole = static_cast<float>(n);
  // log 2 in two parts, of which the first has so few bits that its product with n is exact
  const float r = bounded(z - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float p = 1.3811660464853048e-3f;
  p = p * r + 8.370134979486465e-3f;
  p = p * r + 4.166852682828903e-2f;
  p = p * r + 0.16666509211063385f;
  p = p * r + 0.4999999403953552f;
  p = bounded(r * r * p + r) + 1.0f;
  // in two steps, so that subnormal results and those near the largest are right
  const int half = n / 2;
  const uint32_t bits = __builtin_bit_cast(uint32_t, p) + (static_cast<uint32_t>(half) << 23);
  return __builtin_bit_cast(float, bits) * power_of_two(n - half);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

inline float tanh(float x) {
  const float size = __builtin_fabsf(x), z = x * x;
  float p = -5.528628826141357e-3f;
  p = p * z + 2.0483311265707016e-2f;
  p = p * z + -5.369296669960022e-2f;
  p = p * z + 0.1333089917898178f;
  p = p * z + -0.3333326280117035f;
  const float near = bounded(p * z) * x + x;
  const float far = 1.0f - 2.0f / (exp(2.0f * size) + 1.0f);
  return size < 0.625f ? near : __builtin_copysignf(far, x);
}

inline float erf(float x) {
  const float size = __builtin_fabsf(x), z = x * x;
  float p = 7.889119297033176e-5f;
  p = p * z + -8.020841050893068e-4f;
  p = p * z + 5.189535208046436e-3f;
  p = p * z + -2.6854444295167923e-2f;
  p = p * z + 0.11283600330352783f;
  p = p * z + -0.3761262595653534f;
  p = p * z + 0.12837916612625122f;
  const float near = bounded(p * x) + x;
  // log erfc, from 1 on; from 4.05 on erf rounds to 1
  const float t = size > 4.05f ? 4.05f : size;
  float q = -2.1445592210511677e-5f;
  q = q * t + 4.385302308946848e-4f;
  q = q * t + -4.19085705652833e-3f;
  q = q * t + 2.5171812623739243e-2f;
  q = q * t + -0.10836155712604523f;
  q = q * t + -0.6332724094390869f;
  q = q * t + -1.1295520067214966f;
  q = q * t + 1.824604842113331e-4f;
  const float far = __builtin_copysignf(1.0f - exp(q), x);
  return size < 1.0f ? near : size >= 1.0f ? far : x;
}

// Sine and cosine of an angle in radians, |angle| < 3e9.
inline void sine_cosine(float angle, float* sine, float* cosine) {
  // quarter turns are taken off in float64, with pi / 2 in two parts, so that angles of millions keep all bits
  const double wide = angle, turns = wide * 0.63661977236758134;
  const int n = static_cast<int>(turns + (turns < 0 ? -0.5 : 0.5));
  const double part = bounded(wide - n * 1.5707963267341256);
  const float r = static_cast<float>(part - n * 6.0771005065061922e-11);
  const float z = r * r;
  float s = 2.7066942038800335e-6f;
  s = s * z + -1.9837942090816796e-4f;
  s = s * z + 8.333324454724789e-3f;
  s = s * z + -0.1666666716337204f;
  s = bounded(s * z) * r + r;
  float c = -2.71024163112088e-7f;
  c = c * z + 2.4798031518002972e-5f;
  c = c * z + -1.3888877583667636e-3f;
  c = c * z + 4.16666679084301e-2f;
  c = z * z * c + bounded(1.0f - 0.5f * z);
  const float odd_sine = n & 1 ? c : s, odd_cosine = n & 1 ? s : c;
  *sine = n & 2 ? -odd_sine : odd_sine;
  *cosine = (n + 1) & 2 ? -odd_cosine : odd_cosine;
}

}  // namespace umlm::UNIT
