#include "core/precision.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace umlm {
namespace {

constexpr const char* kNames[] = {"exact", "int16", "int8"};
std::atomic<int> chosen{-1};
thread_local int of_thread = -1;

int find(const std::string& name, const std::string& setting) {
  for (int i = 0; i < 3; ++i) {
    if (name == kNames[i]) return i;
  }
  throw std::invalid_argument(setting + "'" + name + "' is no precision of activations; use one of: exact, int16, int8");
}

}  // namespace

Precision precision() {
  if (of_thread >= 0) return static_cast<Precision>(of_thread);
  if (chosen.load(std::memory_order_relaxed) < 0) {
    const char* wanted = std::getenv("UMLM_ACTIVATIONS");
    chosen.store(wanted == nullptr || *wanted == 0 ? 0 : find(wanted, "UMLM_ACTIVATIONS="));
  }
  return static_cast<Precision>(chosen.load(std::memory_order_relaxed));
}

void set_precision(const std::string& name) { chosen.store(find(name, "")); }

void set_thread_precision(const std::string& name) { of_thread = name.empty() ? -1 : find(name, ""); }

int num_digits(Type type, Precision precision) {
  switch (precision) {
    case Precision::int8: return 1;
    case Precision::int16: return 2;
    default: return type == Type::f32 ? 3 : 2;
  }
}

std::string precision_name() { return kNames[static_cast<int>(precision())]; }

}  // namespace umlm
