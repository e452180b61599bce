// Activations by the names that config.json uses.
#pragma once

#include <stdexcept>
#include <string>

#include "core/kernels.h"

namespace umlm {

inline Activation activation_of(const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  if (name == "relu2") return Activation::relu2;
  throw std::invalid_argument("no kernel for the activation " + name);
}

}  // namespace umlm
