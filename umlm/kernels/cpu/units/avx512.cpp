// Compiled with the flags of its instruction set; included headers may hold no code that other units share.
#define UNIT avx512
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
#include "units/quantized_bits_avx512.h"
#include "units/quantized_scales_avx512.h"
#include "units/quantized_rows_avx512.h"
#include "units/quantized_vnni_policies.h"
#include "units/quantized_vnni_prepare.h"
#include "units/quantized_vnni_sums.h"
#include "units/quantized_vnni_heads.h"
#include "units/quantized_vnni_few.h"
#include "units/quantized_vnni_panels.h"
#include "units/quantized_vnni.h"

namespace umlm {

const Kernels& kernels_avx512() {
  static constexpr Kernels table = {
      "avx512",
      avx512::vnni::quantized_kernels,
      avx512::row_kernels,
      avx512::rope_kernels,
      avx512::page_kernels,
      avx512::attention_kernels,
      avx512::dense_kernels,
      avx512::sampling_kernels,
      avx512::recurrence_kernels,
  };
  return table;
}

}  // namespace umlm
