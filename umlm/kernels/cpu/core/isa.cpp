#include <cstdlib>
#include <stdexcept>
#include <string>

#include "core/kernels.h"

namespace umlm {

#if defined(__x86_64__)
const Kernels& kernels_baseline();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512bf16();
#elif defined(__aarch64__)
const Kernels& kernels_neon();
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

const Kernels& choose() {
  const char* wanted = std::getenv("UMLM_ISA");
  std::string known;
  auto fits = [&](const char* name, bool supported) {
    known += std::string(known.empty() ? "" : ", ") + name;
    return supported && (wanted == nullptr || std::string(wanted) == name);
  };
#if defined(__x86_64__)
  if (fits("avx512bf16", has_avx512bf16())) return kernels_avx512bf16();
  if (fits("avx512", has_avx512())) return kernels_avx512();
  if (fits("avx2", has_avx2())) return kernels_avx2();
  if (fits("baseline", true)) return kernels_baseline();
#elif defined(__aarch64__)
  if (fits("neon", true)) return kernels_neon();
#endif
  throw std::runtime_error("UMLM_ISA=" + std::string(wanted ? wanted : "") +
                           " is not an instruction set of this processor; known: " + known);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace umlm
