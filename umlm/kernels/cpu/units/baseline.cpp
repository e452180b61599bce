// Compiled with the flags of its instruction set; included headers may hold no code that other units share.
#define UNIT baseline
#include "core/kernels.h"
#include "units/lanes.h"
#include "units/math.h"
#include "units/rows_generic.h"
#include "units/rope_generic.h"
#include "units/attention_tiles.h"
#include "units/attention_softmax.h"
#include "units/page_rows.h"
#include "units/attention_generic.h"
#include "units/dense_generic.h"
#include "units/sampling_generic.h"
#include "units/delta_generic.h"
#include "units/scan_generic.h"
#include "units/recurrence_generic.h"
#include "units/quantized_values.h"
#include "units/quantized_generic.h"

namespace umlm {

const Kernels& kernels_baseline() {
  static constexpr Kernels table = {
      "baseline",
      baseline::quantized_kernels,
      baseline::row_kernels,
      baseline::rope_kernels,
      baseline::page_kernels,
      baseline::attention_kernels,
      baseline::dense_kernels,
      baseline::sampling_kernels,
      baseline::recurrence_kernels,
  };
  return table;
}

}  // namespace umlm
