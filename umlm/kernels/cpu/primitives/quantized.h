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

// The matrix that the inputs from `first` on hold: weight [(matrices,) rows, ...], and scales and biases where its layout
// has them.
class StoredMatrix {
 public:
  StoredMatrix(const std::vector<mx::array>& inputs, size_t first, const Coding& coding, int64_t columns) {
    const mx::array& weight = inputs[first];
    w_.layout = coding.layout;
    w_.group = coding.group;
    w_.rows = weight.shape(-2);
    w_.columns = columns;
    w_.row_bytes = weight.shape(-1) * int64_t(weight.itemsize());
    for (size_t i = first; i < inputs.size(); ++i) {
      parts_.emplace_back(inputs[i]);
      strides_.push_back(int64_t(inputs[i].shape(-1)) * inputs[i].shape(-2) * int64_t(inputs[i].itemsize()));
    }
    if (parts_.size() > 2) w_.scale_type = type_of(inputs[first + 1].dtype());
  }

  // To be called where the kernel runs; valid as long as this object.
  QuantizedMatrix matrix(int64_t index = 0) const {
    QuantizedMatrix w = w_;
    const uint8_t** pointers[] = {&w.weight, &w.scales, &w.biases};
    for (size_t i = 0; i < parts_.size(); ++i) {
      *pointers[i] = parts_[i].data() + index * strides_[i];
    }
    return w;
  }

 private:
  QuantizedMatrix w_{};
  std::vector<RowMajor> parts_;
  std::vector<int64_t> strides_;
};

}  // namespace umlm
