// How exactly products with quantized matrices take float32 and float16 activations.
#pragma once

#include <string>

namespace umlm {

enum class Precision : int {
  exact,     // all bits that matter to a float32 sum
  bfloat16,  // rounded to bfloat16 where the unit multiplies that faster
};

// What set_precision, or else UMLM_ACTIVATIONS, says; exact without either. Throws std::invalid_argument for a value of
// UMLM_ACTIVATIONS that is no precision.
Precision precision();

// "exact" or "bfloat16"; throws std::invalid_argument for anything else.
void set_precision(const std::string& name);

std::string precision_name();

}  // namespace umlm
