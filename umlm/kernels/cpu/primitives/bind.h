// What each file of primitives adds to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace umlm {

void bind_quantized(nanobind::module_& m);

}  // namespace umlm
