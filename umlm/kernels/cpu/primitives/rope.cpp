// Rotary positions, and writes into pages.
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

class WritePages : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array &pages = inputs[0], &values = inputs[2];
    RowMajor old(pages), slots(inputs[1]), rows(values);
    const Type type = type_of(values.dtype()), page_type = type_of(pages.dtype());
    const int64_t count = inputs[1].size(), width = pages.shape(0) == 0 ? 0 : pages.size() / pages.shape(0);
    allocate_like(pages, out);
    const bool in_place = out.data<uint8_t>() == pages.data<uint8_t>();
    const size_t bytes = pages.nbytes();
    auto* result = out.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch([=]() {
      if (!in_place) std::memcpy(result, old.data(), bytes);
      std::vector<float> scratch(width);
      kernels().rope.write_rows(rows.data(), type, count, width, reinterpret_cast<const int32_t*>(slots.data()), result,
                                page_type, scratch.data());
    });
  }

  const char* name() const override { return "UmlmWritePages"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
};

void write_pages(mx::array& pages, const mx::array& slots, const mx::array& values, mx::StreamOrDevice s) {
  pages.overwrite_descriptor(mx::array(pages.shape(), pages.dtype(), std::make_shared<WritePages>(mx::to_stream(s)),
                                       {pages, mx::astype(slots, mx::int32, s), values}));
}

}  // namespace

void bind_rope(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("rope", &rope, "x"_a, "positions"_a, "inv_freq"_a, "scale"_a, nanobind::kw_only(),
        "stream"_a = nanobind::none());
  m.def("write_pages", &write_pages, "pages"_a, "slots"_a, "values"_a, nanobind::kw_only(),
        "stream"_a = nanobind::none(), "Let `pages` be the pages with the values written; in place where it can be.");
}

}  // namespace umlm
