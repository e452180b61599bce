// What the driver's parts share: a failing check ends the program and names itself; random numbers; exact buffers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

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

inline std::unique_ptr<float[]> normal(Random& random, int64_t count) {
  auto values = exactly<float>(count);
  std::normal_distribution<float> draw;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = draw(random);
  }
  return values;
}
