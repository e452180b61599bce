// What the driver's parts share: a failing check ends the program and names itself; random numbers; exact buffers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "core/kernels.h"

#define CHECK(condition, ...)                                                \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "%s:%d: %s\n  ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                     \
      std::fprintf(stderr, "\n");                                            \
      std::exit(1);                                                          \
    }                                                                        \
  } while (false)

using Random = std::mt19937;

inline int64_t between(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// A heap block of exactly so many values, so that AddressSanitizer sees one step too far.
template <typename T>
std::unique_ptr<T[]> exactly(int64_t count) {
  return std::unique_ptr<T[]>(new T[count]);
}

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Bytes = std::unique_ptr<uint8_t[], Free>;

// The same in bytes, aligned as the primitives' scratch is.
inline Bytes aligned(int64_t bytes) {
  void* pointer = nullptr;
  CHECK(posix_memalign(&pointer, 64, bytes) == 0, "%ld bytes", long(bytes));
  return Bytes(static_cast<uint8_t*>(pointer));
}

inline std::unique_ptr<float[]> normal(Random& random, int64_t count) {
  auto values = exactly<float>(count);
  std::normal_distribution<float> draw;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = draw(random);
  }
  return values;
}

inline int64_t size_of(umlm::Type type) { return type == umlm::Type::f32 ? 4 : 2; }

inline umlm::Type any_type(Random& random) { return static_cast<umlm::Type>(between(random, 0, 2)); }

// Random numbers in a dtype, and what they are in float32.
struct Stored {
  umlm::Type type;
  std::unique_ptr<uint8_t[]> data;
  std::unique_ptr<float[]> values;

  Stored(Random& random, umlm::Type type, int64_t count)
      : type(type), data(exactly<uint8_t>(count * size_of(type))), values(normal(random, count)) {
    const umlm::RowKernels& rows = umlm::kernels().rows;
    rows.narrow(values.get(), type, count, data.get());
    rows.widen(data.get(), type, count, values.get());
  }
};

// |found - wanted| within `tolerance` of |wanted|, both over all values.
inline void check_near(const float* found, const double* wanted, int64_t count, double tolerance, const char* what) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    error += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  CHECK(std::sqrt(error) <= tolerance * std::sqrt(norm) + 1e-30, "%s: off by %g of %g", what, std::sqrt(error),
        std::sqrt(norm));
}

// What the output's dtype can hold.
inline double rounding(umlm::Type type) {
  return type == umlm::Type::f32 ? 1e-5 : type == umlm::Type::f16 ? 1e-3 : 8e-3;
}
