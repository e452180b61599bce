#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/cpus.h"
#include "core/isa.h"
#include "core/kernels.h"
#include "core/precision.h"
#include "core/threads.h"
#include "primitives/bind.h"

using namespace nanobind::literals;

NB_MODULE(_ext, m) {
  m.doc() = "umlm's CPU kernels as lazy MLX operations";
  m.def("isa", [] { return std::string(umlm::kernels().name); }, "Name of the instruction set in use.");
  m.def("isas", &umlm::isas, "Names of the instruction sets that this processor has kernels for, best first.");
  m.def("set_isa", &umlm::set_isa, "name"_a, "Let another instruction set serve from now on.");
  m.def("quota_cpus", &umlm::quota_cpus, "self"_a = umlm::kOwnGroups, "root"_a = umlm::kGroupRoot,
        "Processors that the control groups' quotas are worth, rounded up; 0 without a quota.");
  m.def("num_threads", &umlm::num_threads, "Threads that kernels use.");
  m.def("set_num_threads", &umlm::set_num_threads, "count"_a, "Set the threads that kernels use; 0: what the process may use.");
  m.def("precision", &umlm::precision_name, "How exactly products with quantized matrices take activations.");
  m.def("set_precision", &umlm::set_precision, "name"_a, "Set it: 'exact', 'int16' or 'int8'.");
  m.def("set_thread_precision", &umlm::set_thread_precision, "name"_a,
        "The same for operations that the calling thread makes; '' lets set_precision count again.");
  umlm::bind_attention(m);
  umlm::bind_dense(m);
  umlm::bind_gated_delta(m);
  umlm::bind_halves(m);
  umlm::bind_attention_half(m);
  umlm::bind_block_stack(m);
  umlm::bind_embedding(m);
  umlm::bind_quantized(m);
  umlm::bind_experts(m);
  umlm::bind_mapped(m);
  umlm::bind_rope(m);
  umlm::bind_rows(m);
  umlm::bind_sampling(m);
  umlm::bind_selective_scan(m);
  umlm::bind_short_conv(m);
}
