// The short convolution over a packed row.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "primitives/bind.h"
#include "primitives/segments.h"

namespace umlm {
namespace {

// inputs: x [T, C], weight [C, K], states [R, K - 1, C], and bias [C] if there is one
class ShortConvPrimitive : public Recurrence {
 public:
  using Recurrence::Recurrence;

  const char* name() const override { return "UmlmShortConv"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return starts_ == static_cast<const ShortConvPrimitive&>(other).starts_;
  }

 protected:
  std::function<void()> work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const override {
    const bool biased = inputs.size() > 3;
    ShortConv a{};
    a.channels = inputs[1].shape(0), a.taps = inputs[1].shape(1);
    a.weight_type = type_of(inputs[1].dtype()), a.bias_type = type_of(inputs[biased ? 3 : 1].dtype());
    a.state_type = type_of(inputs[2].dtype());
    a.out = outputs[0].data<uint8_t>(), a.new_states = outputs[1].data<uint8_t>();
    PackedRow x(inputs[0]);
    RowMajor weight(inputs[1]), states(inputs[2]), bias(inputs[biased ? 3 : 1]);
    return [=, starts = starts_]() mutable {
      a.x = x.rows();
      a.weight = weight.data(), a.states = states.data();
      a.bias = biased ? bias.data() : nullptr;
      run(a, starts);
    };
  }

 private:
  static void run(const ShortConv& a, const std::vector<int64_t>& starts) {
    const RecurrenceKernels& k = kernels().recurrence;
    const int64_t requests = starts.size() - 1, blocks = (a.channels + kConvChannels - 1) / kConvChannels;
    const int64_t cost = (starts.back() / (requests + 1) + 1) * kConvChannels * a.taps;
    for_each_part(requests, blocks, cost, 0, [&](int64_t request, int64_t part, float*) {
      k.short_conv(a, request, starts[request], starts[request + 1], part * kConvChannels);
    });
  }
};

// The shapes are those of the class above; umlm/kernels/short_conv.py checks them.
std::pair<mx::array, mx::array> short_conv(const mx::array& x, const mx::array& weight,
                                           const std::optional<mx::array>& bias, const mx::array& states,
                                           std::vector<int64_t> starts, mx::StreamOrDevice s) {
  std::vector<mx::array> inputs = {x, weight, states};
  if (bias) inputs.push_back(*bias);
  auto primitive = std::make_shared<ShortConvPrimitive>(mx::to_stream(s), std::move(starts));
  auto out = mx::array::make_arrays({x.shape(), states.shape()}, {x.dtype(), states.dtype()}, primitive, inputs);
  return {out[0], out[1]};
}

}  // namespace

void bind_short_conv(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("short_conv", &short_conv, "x"_a, "weight"_a, "bias"_a.none(), "states"_a, "starts"_a, nanobind::kw_only(),
        "stream"_a = nanobind::none());
}

}  // namespace umlm
