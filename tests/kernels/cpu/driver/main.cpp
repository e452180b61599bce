// Runs kernels and threads without Python and MLX, for sanitizers and emulators. Ends with 0 if all is well.
#include <cstdio>
#include <cstdlib>

#include "core/isa.h"
#include "core/threads.h"
#include "parts.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool kForking = false;
#else
constexpr bool kForking = true;
#endif

int main() {
  check_threads(kForking);
  std::printf("threads\n");
  umlm::set_num_threads(3);
  for (const std::string& isa : umlm::isas()) {
    umlm::set_isa(isa);
    check_rows();
    check_dense();
    check_quantized();
    check_recurrence();
    check_sampling();
    check_attention();
    std::printf("%s\n", isa.c_str());
  }
}
