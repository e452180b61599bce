// Quantized matrices as inputs of primitives.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "primitives/row_major.h"

namespace umlm {

// A layout and the number of values that share a scale in it.
struct Coding {
  Layout layout;
  int group;
  bool operator==(const Coding&) const = default;
};

inline Coding coding_of(const std::string& name, int group_size) {
  static const std::vector<std::pair<const char*, Layout>> mlx = {
      {"affine2", Layout::affine2}, {"affine3", Layout::affine3}, {"affine4", Layout::affine4},
      {"affine5", Layout::affine5}, {"affine6", Layout::affine6}, {"affine8", Layout::affine8},
      {"mxfp4", Layout::mxfp4},     {"mxfp8", Layout::mxfp8},     {"nvfp4", Layout::nvfp4},
  };
  static const std::vector<std::pair<const char*, Coding>> ggml = {
      {"Q4_0", {Layout::ggml_q4_0, 32}},     {"Q4_1", {Layout::ggml_q4_1, 32}},
      {"Q5_0", {Layout::ggml_q5_0, 32}},     {"Q5_1", {Layout::ggml_q5_1, 32}},
      {"Q8_0", {Layout::ggml_q8_0, 32}},     {"IQ4_NL", {Layout::ggml_iq4_nl, 32}},
      {"MXFP4", {Layout::ggml_mxfp4, 32}},   {"Q2_K", {Layout::ggml_q2_k, 16}},
      {"Q3_K", {Layout::ggml_q3_k, 16}},     {"Q4_K", {Layout::ggml_q4_k, 32}},
      {"Q5_K", {Layout::ggml_q5_k, 32}},     {"Q6_K", {Layout::ggml_q6_k, 16}},
      {"IQ4_XS", {Layout::ggml_iq4_xs, 32}},
  };
  for (const auto& [known, layout] : mlx) {
    if (name == known) return {layout, group_size};
  }
  for (const auto& [known, coding] : ggml) {
    if (name == known) return coding;
  }
  throw std::invalid_argument("no kernel for quantized matrices of layout '" + name + "'");
}

inline std::vector<mx::array> stored_arrays(const mx::array& weight, const std::optional<mx::array>& scales,
                                            const std::optional<mx::array>& biases) {
  std::vector<mx::array> arrays = {weight};
  if (scales) arrays.push_back(*scales);
  if (biases) arrays.push_back(*biases);
  return arrays;
}

// The matrix that the inputs after the first hold: weight, and scales and biases where its layout has them.
class StoredMatrix {
 public:
  StoredMatrix(const std::vector<mx::array>& inputs, const Coding& coding, int64_t columns)
      : weight_(inputs[1]), scales_(inputs[inputs.size() > 2 ? 2 : 1]), biases_(inputs[inputs.size() > 3 ? 3 : 1]) {
    w_.layout = coding.layout;
    w_.group = coding.group;
    w_.rows = inputs[1].shape(0);
    w_.columns = columns;
    w_.row_bytes = inputs[1].shape(1) * int64_t(inputs[1].itemsize());
    has_scales_ = inputs.size() > 2;
    has_biases_ = inputs.size() > 3;
    if (has_biases_) w_.scale_type = type_of(inputs[2].dtype());
  }

  // To be called where the kernel runs; valid as long as this object.
  QuantizedMatrix matrix() const {
    QuantizedMatrix w = w_;
    w.weight = weight_.data();
    w.scales = has_scales_ ? scales_.data() : nullptr;
    w.biases = has_biases_ ? biases_.data() : nullptr;
    return w;
  }

 private:
  QuantizedMatrix w_{};
  RowMajor weight_, scales_, biases_;
  bool has_scales_, has_biases_;
};

}  // namespace umlm
