// Compiled with AVX512 F/BW/VL/DQ/VNNI/BF16/VBMI; included headers may hold no code that other units share.
#define UNIT avx512bf16
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

const Kernels& kernels_avx512bf16() {
  static constexpr Kernels table = {
      "avx512bf16",
      avx512bf16::vnni::quantized_kernels,
      avx512bf16::row_kernels,
      avx512bf16::rope_kernels,
      avx512bf16::page_kernels,
      avx512bf16::attention_kernels,
      avx512bf16::dense_kernels,
      avx512bf16::sampling_kernels,
      avx512bf16::recurrence_kernels,
  };
  return table;
}

}  // namespace umlm
