// norm, gate and up, activation, down, residual: half a block as one operation.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "primitives/activation.h"
#include "primitives/bind.h"
#include "primitives/blocks.h"
#include "primitives/halves.h"

namespace umlm {
namespace {

struct MlpShape {
  float eps, offset;
  ProjectionKind gate, up, down;
  Activation activation;
  int norm_at, gate_at, up_at, down_at;
  std::optional<int> post_at;
  float post_eps, post_offset;
};

class MlpHalfPrimitive : public CpuPrimitive {
 public:
  MlpHalfPrimitive(mx::Stream stream, MlpShape shape) : CpuPrimitive(stream), shape_(std::move(shape)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(result_memory(out.nbytes()));
    auto work = std::make_shared<Work>(inputs, shape_, precision_);
    mx::cpu::get_command_encoder(stream()).dispatch(
        [work, x = RowMajor(inputs[0]), result = out.data<uint8_t>()]() { work->run(x.data(), result); });
  }

  const char* name() const override { return "UmlmMlpHalf"; }

  struct Work : FeedForwardStep {
    Type type;
    Precision precision;
    NormInput norm;
    Projection gate, up, down;
    std::optional<NormInput> post;
    Activation activation;
    int64_t rows, columns;

    Work(const std::vector<mx::array>& in, const MlpShape& s, Precision precision)
        : type(type_of(in[0].dtype())),
          precision(precision),
          norm(in[s.norm_at], s.eps, s.offset),
          gate(in, s.gate_at, s.gate),
          up(in, s.up_at, s.up),
          down(in, s.down_at, s.down),
          activation(s.activation),
          rows(in[0].size() / in[0].shape(-1)),
          columns(in[0].shape(-1)) {
      if (s.post_at) post.emplace(in[*s.post_at], s.post_eps, s.post_offset);
    }

    void run(const void* x, void* out) override {
      const int64_t width = gate.outputs();
      Scratch memory((2 * rows * columns + 2 * rows * width) * sizeof(float));
      auto* normed = reinterpret_cast<float*>(memory.data());
      auto *gates = normed + rows * columns, *ups = gates + rows * width, *downs = ups + rows * width;
      const WideRows values(x, type, rows * columns);
      norm.run(values.data(), type, rows, columns, normed);
      Activations activations(normed, type, precision, rows, columns);
      gate.begin(activations, gates);
      up.begin(activations, ups);
      parallel_for(gate.num_pieces(), 1, [&](int64_t begin, int64_t end) {
        gate.run(begin, end);
        up.run(begin, end);
        const int64_t first = begin * Projection::kPiece, last = std::min(end * Projection::kPiece, width);
        for (int64_t m = 0; m < rows; ++m) {
          const int64_t at = m * width + first;
          kernels().rows.activate(activation, gates + at, Type::f32, ups + at, Type::f32, last - first, gates + at);
          round_to(type, gates + at, last - first);
        }
      });
      Activations inner(gates, type, precision, rows, width);
      down.begin(inner, downs);
      project({&down});
      add_residual(values.data(), downs, post ? &*post : nullptr, type, rows, columns, out);
    }
  };

 private:
  MlpShape shape_;
};

// Made once per layer; called with x [..., columns] of any float type.
class MlpHalf : public FeedForwardOperation {
 public:
  MlpHalf(const Norm& norm, const Weights& gate, const Weights& up, const Weights& down, const std::string& activation,
          const std::optional<Norm>& post) {
    Parts parts;
    parts.inputs.push_back(norm.weight);  // the place of x
    shape_ = {norm.eps, norm.offset, gate.kind, up.kind, down.kind, activation_of(activation), 0, 0, 0, 0, {}, 0, 0};
    shape_.norm_at = parts.add(norm.weight);
    shape_.gate_at = parts.add(gate);
    shape_.up_at = parts.add(up);
    shape_.down_at = parts.add(down);
    if (post) {
      shape_.post_at = parts.add(post->weight);
      shape_.post_eps = post->eps;
      shape_.post_offset = post->offset;
    }
    inputs_ = std::move(parts.inputs);
  }

  mx::array operator()(const mx::array& x, mx::StreamOrDevice s) const {
    type_of(x.dtype());  // refuses others
    return mx::array(x.shape(), x.dtype(), std::make_shared<MlpHalfPrimitive>(mx::to_stream(s), shape_), inputs(x));
  }

  std::unique_ptr<FeedForwardStep> step(const BlockCall& call) const override {
    return std::make_unique<MlpHalfPrimitive::Work>(inputs(call.x), shape_, call.precision);
  }
  const std::vector<mx::array>& weights() const override { return inputs_; }

 private:
  std::vector<mx::array> inputs(const mx::array& x) const {
    auto all = inputs_;
    all[0] = x;
    return all;
  }

  MlpShape shape_;
  std::vector<mx::array> inputs_;
};

Weights weights(const mx::array& weight, const std::optional<mx::array>& scales,
                const std::optional<mx::array>& biases, const std::optional<mx::array>& bias,
                const std::optional<std::string>& layout, int group_size, int64_t columns) {
  Weights made{{weight}, {}};
  if (scales) made.arrays.push_back(*scales);
  if (biases) made.arrays.push_back(*biases);
  if (bias) made.arrays.push_back(*bias);
  made.kind.columns = columns;
  made.kind.biased = bias.has_value();
  made.kind.num_arrays = static_cast<int>(made.arrays.size());
  if (layout) made.kind.coding = coding_of(*layout, group_size);
  return made;
}

}  // namespace

void bind_halves(nanobind::module_& m) {
  using namespace nanobind::literals;
  namespace nb = nanobind;
  nb::class_<Norm>(m, "Norm").def(nb::init<mx::array, float, float>(), "weight"_a, "eps"_a, "offset"_a);
  nb::class_<Weights>(m, "Weights");
  m.def("weights", &weights, "weight"_a, "scales"_a.none(), "biases"_a.none(), "bias"_a.none(), "layout"_a.none(),
        "group_size"_a, "columns"_a);
  nb::class_<FeedForwardOperation>(m, "FeedForwardOperation");
  nb::class_<MlpHalf, FeedForwardOperation>(m, "MlpHalf")
      .def(nb::init<const Norm&, const Weights&, const Weights&, const Weights&, const std::string&,
                    const std::optional<Norm>&>(),
           "norm"_a, "gate"_a, "up"_a, "down"_a, "activation"_a, "post"_a.none())
      .def("__call__", &MlpHalf::operator(), "x"_a, "stream"_a = nb::none());
}

}  // namespace umlm
