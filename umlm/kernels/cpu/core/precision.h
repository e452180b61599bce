// How exactly products with quantized matrices take activations.
#pragma once

#include <string>

#include "core/types.h"

namespace umlm {

enum class Precision : int {
  exact,  // float32: all bits that matter to a float32 sum; 16-bit floats: all that matter to a 16-bit result
  int16,  // fixed-point numbers of 16 bits, where the unit multiplies integers
  int8,   // of 8 bits
};

// What set_thread_precision says in this thread, else set_precision, else UMLM_ACTIVATIONS; exact without any. An operation
// takes what holds when it is made. Throws std::invalid_argument for a value of UMLM_ACTIVATIONS that is no precision.
Precision precision();

// "exact", "int16" or "int8"; throws std::invalid_argument for anything else.
void set_precision(const std::string& name);

// The same for operations that the calling thread makes; "" lets set_precision count again.
void set_thread_precision(const std::string& name);

std::string precision_name();

// Bytes of a fixed-point number for activations of this type.
int num_digits(Type type, Precision precision);

}  // namespace umlm
