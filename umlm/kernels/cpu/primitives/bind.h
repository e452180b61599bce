// What each file of primitives adds to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace umlm {

void bind_attention(nanobind::module_& m);
void bind_dense(nanobind::module_& m);
void bind_attention_half(nanobind::module_& m);
void bind_block_stack(nanobind::module_& m);
void bind_gated_delta(nanobind::module_& m);
void bind_halves(nanobind::module_& m);
void bind_embedding(nanobind::module_& m);
void bind_quantized(nanobind::module_& m);
void bind_experts(nanobind::module_& m);
void bind_mapped(nanobind::module_& m);
void bind_rope(nanobind::module_& m);
void bind_rows(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_selective_scan(nanobind::module_& m);
void bind_short_conv(nanobind::module_& m);

}  // namespace umlm
