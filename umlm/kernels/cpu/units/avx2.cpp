// Compiled with the flags of its instruction set; included headers may hold no code that other units share.
#define UNIT avx2
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

const Kernels& kernels_avx2() {
  static constexpr Kernels table = {
      "avx2",
      avx2::quantized_kernels,
      avx2::row_kernels,
      avx2::rope_kernels,
      avx2::page_kernels,
      avx2::attention_kernels,
      avx2::dense_kernels,
      avx2::sampling_kernels,
      avx2::recurrence_kernels,
  };
  return table;
}

}  // namespace umlm
