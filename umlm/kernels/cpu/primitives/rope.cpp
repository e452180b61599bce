// Rotary positions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/variant.h>

#include <vector>

#include "core/threads.h"
#include "primitives/bind.h"
#include "primitives/row_major.h"

namespace umlm {
namespace {

// Values that are worth a thread's wake-up.
constexpr int64_t kWorth = 16384;

class Rope : public CpuPrimitive {
 public:
  Rope(mx::Stream stream, float scale, bool back) : CpuPrimitive(stream), scale_(scale), back_(back) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array &x = inputs[0], &inv_freq = inputs[2];
    RowMajor values(x), positions(inputs[1]), frequencies(inv_freq);
    const Type type = type_of(x.dtype());
    const int64_t batch = x.shape(0), tokens = x.shape(1), heads = x.shape(2), dims = x.shape(3);
    const int64_t half = inv_freq.shape(-1), next = inv_freq.ndim() > 1 ? half : 0;
    const int64_t row_bytes = heads * dims * x.itemsize();
    allocate_like(x, out);
    auto* result = out.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch([=, scale = scale_, back = back_]() {
      const uint8_t* from = values.data();
      const auto* places = reinterpret_cast<const int32_t*>(positions.data());
      const auto* freq = reinterpret_cast<const float*>(frequencies.data());
      parallel_for(tokens, kWorth / (batch * heads * dims + 1) + 1, [&](int64_t begin, int64_t end) {
        const RopeKernels& k = kernels().rope;
        std::vector<float> table(2 * half), scratch(dims);
        for (int64_t t = begin; t < end; ++t) {
          k.turns(places[t], freq + t * next, half, scale, table.data());
          for (int64_t b = 0; b < batch; ++b) {
            const int64_t at = (b * tokens + t) * row_bytes;
            k.rope_rows(from + at, type, heads, dims, half, table.data(), back, scratch.data(), result + at);
          }
        }
      });
    });
  }

  // linear in x: the gradient turns back
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>&) override {
    if (argnums.size() != 1 || argnums[0] != 0) {
      throw std::invalid_argument("rope: only x has a gradient in the CPU kernels");
    }
    const mx::array& g = cotangents[0];
    auto primitive = std::make_shared<Rope>(stream(), scale_, !back_);
    return {mx::array(g.shape(), g.dtype(), primitive, {g, primals[1], primals[2]})};
  }

  const char* name() const override { return "UmlmRope"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const Rope&>(other);
    return scale_ == same.scale_ && back_ == same.back_;
  }

 private:
  float scale_;
  bool back_;
};

mx::array rope(const mx::array& x, const mx::array& positions, const mx::array& inv_freq, float scale,
               mx::StreamOrDevice s) {
  auto primitive = std::make_shared<Rope>(mx::to_stream(s), scale, false);
  return mx::array(x.shape(), x.dtype(), primitive,
                   {x, mx::astype(positions, mx::int32, s), mx::astype(inv_freq, mx::float32, s)});
}

}  // namespace

void bind_rope(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("rope", &rope, "x"_a, "positions"_a, "inv_freq"_a, "scale"_a, nanobind::kw_only(),
        "stream"_a = nanobind::none());
}

}  // namespace umlm
