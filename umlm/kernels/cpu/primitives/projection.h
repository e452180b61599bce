// The products inside fused operations: matrices quantized or dense, with their biases, over shared activations.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/threads.h"
#include "primitives/quantized.h"

namespace umlm {

// Round float32 values to a type, as a result of that type would have them.
inline void round_to(Type type, float* values, int64_t count) {
  if (type == Type::f32) return;
  constexpr int64_t kPiece = 512;
  uint16_t halves[kPiece];
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t some = std::min(kPiece, count - i);
    kernels().rows.narrow(values + i, type, some, halves);
    kernels().rows.widen(halves, type, some, values + i);
  }
}

// Rows [rows, columns] of a type, held in float32, prepared once for every coding that asks.
class Activations {
 public:
  Activations(const float* values, Type type, Precision precision, int64_t rows, int64_t columns)
      : values(values), type(type), rows(rows), columns(columns), digits_(num_digits(type, precision)) {}

  // Not to be called from several threads at once.
  const Operand& operand(const QuantizedMatrix& w) {
    for (const auto& ready : ready_) {
      if (ready.coding == Coding{w.layout, w.group} && ready.operand.columns == w.columns) return ready.operand;
    }
    const QuantizedKernels& k = kernels().quantized;
    auto scratch = std::make_unique<Scratch>(rows * k.prepared_bytes(w));
    Operand operand = k.operand(w, values, Type::f32, digits_, rows, scratch->data());
    if (rows > 8) {
      parallel_for(rows, 4, [&](int64_t begin, int64_t end) { k.prepare(w, operand, begin, end); });
    } else {
      k.prepare(w, operand, 0, rows);
    }
    ready_.push_back({{w.layout, w.group}, operand, std::move(scratch)});
    return ready_.back().operand;
  }

  // The rows as bfloat16, which they must be.
  const void* halves() {
    if (halves_ == nullptr) {
      halves_ = std::make_unique<Scratch>(rows * columns * sizeof(uint16_t));
      kernels().rows.narrow(values, Type::bf16, rows * columns, reinterpret_cast<uint16_t*>(halves_->data()));
    }
    return halves_->data();
  }

  const float* const values;
  const Type type;
  const int64_t rows, columns;

 private:
  struct Ready {
    Coding coding;
    Operand operand;
    std::unique_ptr<Scratch> scratch;
  };
  const int digits_;
  std::vector<Ready> ready_;
  std::unique_ptr<Scratch> halves_;
};

// What a projection is, apart from its numbers.
struct ProjectionKind {
  std::optional<Coding> coding;  // none: dense
  int64_t columns;
  bool biased;
  int num_arrays;  // weight, scales, biases, bias: those that there are
};

// y = x W^T + b, rounded to x's type where Linear rounds; its arrays are those of `inputs` from `first` on.
class Projection {
 public:
  // Outputs are computed in pieces of so many.
  static constexpr int64_t kPiece = kBlockOutputs;

  Projection(const std::vector<mx::array>& inputs, int first, const ProjectionKind& kind)
      : kind_(kind),
        outputs_(inputs[first].shape(0)),
        weight_(inputs[first]),
        bias_(inputs[first + kind.num_arrays - 1]),
        weight_type_(kind.coding ? Type::f32 : type_of(inputs[first].dtype())),
        bias_type_(kind.biased ? type_of(inputs[first + kind.num_arrays - 1].dtype()) : Type::f32) {
    if (kind.coding) {
      std::vector<mx::array> stored(inputs.begin() + first,
                                    inputs.begin() + first + kind.num_arrays - (kind.biased ? 1 : 0));
      stored_.emplace(stored, 0, *kind.coding, kind.columns);
    }
  }

  int64_t outputs() const { return outputs_; }
  int64_t num_pieces() const { return (outputs_ + kPiece - 1) / kPiece; }

  // Take x and the place of y [rows, outputs]; before run, where the kernel runs.
  void begin(Activations& x, float* out) {
    out_ = out;
    rows_ = x.rows;
    type_ = x.type;
    bias_data_ = kind_.biased ? bias_.data() : nullptr;
    if (stored_) {
      matrix_ = stored_->matrix();
      operand_ = x.operand(matrix_);
      return;
    }
    const bool halves = kernels().dense.operand_type(x.type, weight_type_) == Type::bf16;
    const void* values = halves ? x.halves() : x.values;
    product_ = {rows_, outputs_, kind_.columns, values, weight_.data(), bias_data_, out, halves ? Type::bf16 : Type::f32,
                weight_type_, bias_type_, Type::f32};
  }

  // Compute the outputs of pieces [first, last) for all rows; any thread.
  void run(int64_t first, int64_t last) const {
    if (!stored_) {
      for (int64_t piece = first; piece < last; ++piece) {
        for (int64_t row = 0; row < rows_; row += kBlockRows) {
          kernels().dense.block(product_, row, piece * kBlockOutputs);
        }
      }
      round_outputs(first * kPiece, std::min(last * kPiece, outputs_));
      return;
    }
    const int64_t begin = first * kPiece, end = std::min(last * kPiece, outputs_);
    kernels().quantized.quantized_matmul(matrix_, operand_, out_, outputs_, begin, end);
    round_outputs(begin, end);
    if (kind_.biased) {
      add_bias(begin, end);
      round_outputs(begin, end);
    }
  }

 private:
  void round_outputs(int64_t begin, int64_t end) const {
    for (int64_t m = 0; type_ != Type::f32 && m < rows_; ++m) {
      round_to(type_, out_ + m * outputs_ + begin, end - begin);
    }
  }

  void add_bias(int64_t begin, int64_t end) const {
    float bias[kPiece];
    const int64_t item = bias_type_ == Type::f32 ? 4 : 2;
    for (int64_t n = begin; n < end; n += kPiece) {
      const int64_t count = std::min(kPiece, end - n);
      kernels().rows.widen(bias_data_ + n * item, bias_type_, count, bias);
      for (int64_t m = 0; m < rows_; ++m) {
        for (int64_t i = 0; i < count; ++i) {
          out_[m * outputs_ + n + i] += bias[i];
        }
      }
    }
  }

  ProjectionKind kind_;
  int64_t outputs_;
  RowMajor weight_, bias_;
  Type weight_type_, bias_type_;
  std::optional<StoredMatrix> stored_;

  QuantizedMatrix matrix_{};
  Operand operand_{};
  DenseProduct product_{};
  const uint8_t* bias_data_ = nullptr;
  float* out_ = nullptr;
  Type type_ = Type::f32;
  int64_t rows_ = 0;
};

}  // namespace umlm
