// Which instruction sets this processor has, and which of them serves.
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "core/isa.h"
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

struct Unit {
  const char* name;
  bool (*supported)();  // every instruction that the unit's flags in CMakeLists.txt allow
  const Kernels& (*table)();
};

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

// Cooper Lake has bf16 without vbmi
bool has_avx512bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}

// best first
constexpr Unit kUnits[] = {
    {"avx512bf16", has_avx512bf16, kernels_avx512bf16},
    {"avx512", has_avx512, kernels_avx512},
    {"avx2", has_avx2, kernels_avx2},
    {"baseline", [] { return true; }, kernels_baseline},
};
#elif defined(__aarch64__)
bool has_neon() {
#if defined(__linux__)
  const unsigned long wanted = HWCAP_ASIMDDP | HWCAP_ASIMDHP | HWCAP_FPHP;
  return (getauxval(AT_HWCAP) & wanted) == wanted;
#else
  return true;
#endif
}

constexpr Unit kUnits[] = {{"neon", has_neon, kernels_neon}};
#endif

std::atomic<const Kernels*> chosen{nullptr};

// The table of a name, or of the best unit without one; null where the processor lacks it.
const Kernels* find(const char* name) {
  for (const Unit& unit : kUnits) {
    if (unit.supported() && (name == nullptr || std::string(name) == unit.name)) {
      return &unit.table();
    }
  }
  return nullptr;
}

const Kernels* find_or_throw(const char* name, const std::string& asked) {
  const Kernels* table = find(name);
  if (table == nullptr) {
    std::string known;
    for (const std::string& each : isas()) {
      known += (known.empty() ? "" : ", ") + each;
    }
    throw std::invalid_argument(asked + " is not an instruction set of this processor; use one of: " + known);
  }
  return table;
}

}  // namespace

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Unit& unit : kUnits) {
    if (unit.supported()) {
      names.push_back(unit.name);
    }
  }
  return names;
}

void set_isa(const std::string& name) { chosen.store(find_or_throw(name.c_str(), "'" + name + "'")); }

const Kernels& kernels() {
  const Kernels* table = chosen.load(std::memory_order_acquire);
  if (table == nullptr) {
    const char* wanted = std::getenv("UMLM_ISA");
    wanted = wanted != nullptr && *wanted == 0 ? nullptr : wanted;
    table = find_or_throw(wanted, "UMLM_ISA='" + std::string(wanted ? wanted : "") + "'");
    chosen.store(table, std::memory_order_release);
  }
  return *table;
}

}  // namespace umlm
