// The gated delta rule over a packed row.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "primitives/bind.h"
#include "primitives/segments.h"

namespace umlm {
namespace {

class GatedDeltaPrimitive : public Recurrence {
 public:
  GatedDeltaPrimitive(mx::Stream stream, std::vector<int64_t> starts, float scale, float eps)
      : Recurrence(stream, std::move(starts)), scale_(scale), eps_(eps) {}

  const char* name() const override { return "UmlmGatedDelta"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const GatedDeltaPrimitive&>(other);
    return starts_ == same.starts_ && scale_ == same.scale_ && eps_ == same.eps_;
  }

 protected:
  std::function<void()> work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const override {
    GatedDelta a{};
    a.k_heads = inputs[1].shape(1), a.k_dim = inputs[1].shape(2);
    a.v_heads = inputs[2].shape(1), a.v_dim = inputs[2].shape(2);
    a.per_channel = inputs[3].ndim() == 3;
    a.scale = scale_, a.eps = eps_;
    a.out = outputs[0].data<uint8_t>(), a.new_states = outputs[1].data<float>();
    PackedRow q(inputs[0]), k(inputs[1]), v(inputs[2]);
    RowMajor decay(inputs[3]), beta(inputs[4]), states(inputs[5]);
    return [=, starts = starts_]() mutable {
      a.q = q.rows(), a.k = k.rows(), a.v = v.rows();
      a.log_decay = floats(decay), a.beta = floats(beta), a.states = floats(states);
      run(a, starts);
    };
  }

 private:
  static void run(const GatedDelta& a, const std::vector<int64_t>& starts) {
    const RecurrenceKernels& k = kernels().recurrence;
    const int64_t requests = starts.size() - 1, tiles = (a.v_dim + kDeltaColumns - 1) / kDeltaColumns;
    const int64_t cost = (starts.back() / (requests + 1) + 1) * a.k_dim * kDeltaColumns;
    for_each_part(requests, a.v_heads * tiles, cost, k.delta_scratch(a),
                  [&](int64_t request, int64_t part, float* scratch) {
                    k.gated_delta(a, request, starts[request], starts[request + 1], part / tiles,
                                  part % tiles * kDeltaColumns, scratch);
                  });
  }

  float scale_, eps_;
};

// The shapes are those of umlm/kernels/gated_delta.py, which checks them; eps < 0: q and k as they are.
std::pair<mx::array, mx::array> gated_delta(const mx::array& q, const mx::array& k, const mx::array& v,
                                            const mx::array& log_decay, const mx::array& beta,
                                            const mx::array& states, std::vector<int64_t> starts, float scale,
                                            float eps, mx::StreamOrDevice s) {
  auto wide = [&](const mx::array& x) { return mx::astype(x, mx::float32, s); };
  auto primitive = std::make_shared<GatedDeltaPrimitive>(mx::to_stream(s), std::move(starts), scale, eps);
  auto out = mx::array::make_arrays({v.shape(), states.shape()}, {v.dtype(), mx::float32}, primitive,
                                    {q, k, v, wide(log_decay), wide(beta), states});
  return {out[0], out[1]};
}

// Whether gradients may be asked of what is made of these arrays: then plain operations have to be recorded.
bool traced(const std::vector<mx::array>& arrays) {
  for (const mx::array& array : arrays) {
    if (array.is_tracer()) return true;
  }
  return false;
}

}  // namespace

void bind_gated_delta(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("traced", &traced, "arrays"_a, "Whether a transformation, such as a gradient, follows one of the arrays.");
  m.def("gated_delta", &gated_delta, "q"_a, "k"_a, "v"_a, "log_decay"_a, "beta"_a, "states"_a, "starts"_a, "scale"_a,
        "eps"_a, nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
