#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "core/kernels.h"
#include "core/threads.h"
#include "primitives/bind.h"

using namespace nanobind::literals;

NB_MODULE(_ext, m) {
  m.doc() = "umlm's CPU kernels as lazy MLX operations";
  m.def("isa", [] { return std::string(umlm::kernels().name); }, "Name of the instruction set in use.");
  m.def("num_threads", &umlm::num_threads, "Threads that kernels use.");
  m.def("set_num_threads", &umlm::set_num_threads, "count"_a, "Set the threads that kernels use.");
  umlm::bind_quantized(m);
}
