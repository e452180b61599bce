// Tokens from logits.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "core/threads.h"
#include "primitives/bind.h"
#include "primitives/row_major.h"

namespace umlm {
namespace {

class SampleRows : public mx::Primitive {
 public:
  SampleRows(mx::Stream stream, std::vector<Draw> draws) : Primitive(stream), draws_(std::move(draws)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const mx::array& logits = inputs[0];
    RowMajor values(logits);
    const Type type = type_of(logits.dtype());
    const int64_t count = logits.shape(1), row_bytes = count * logits.itemsize();
    for (mx::array& out : outputs) {
      out.set_data(mx::allocator::malloc(out.nbytes()));
    }
    auto* tokens = outputs[0].data<uint32_t>();
    auto* usable = outputs[1].data<bool>();
    mx::cpu::get_command_encoder(stream()).dispatch([=, draws = draws_]() {
      const uint8_t* from = values.data();
      const Kernels& k = kernels();
      parallel_for(draws.size(), 1, [&](int64_t begin, int64_t end) {
        Scratch wide(type == Type::f32 ? 0 : count * sizeof(float));
        for (int64_t row = begin; row < end; ++row) {
          auto* logits = reinterpret_cast<const float*>(from + row * row_bytes);
          if (type != Type::f32) {
            k.rows.widen(from + row * row_bytes, type, count, reinterpret_cast<float*>(wide.data()));
            logits = reinterpret_cast<const float*>(wide.data());
          }
          const Choice choice = choose_token(k.sampling, logits, count, draws[row]);
          tokens[row] = choice.token;
          usable[row] = choice.usable;
        }
      });
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("sample_rows of umlm's CPU kernels was asked to run on a GPU");
  }
  const char* name() const override { return "UmlmSampleRows"; }

 private:
  std::vector<Draw> draws_;
};

using DrawTuple = std::tuple<float, int64_t, float, float, float>;

// logits [S, V], a draw per row (temperature, top_k, top_p, min_p, uniform) -> tokens uint32 [S], usable bool [S]
std::pair<mx::array, mx::array> sample_rows(const mx::array& logits, const std::vector<DrawTuple>& draws,
                                            mx::StreamOrDevice s) {
  type_of(logits.dtype());
  if (logits.ndim() != 2 || logits.shape(0) != static_cast<int>(draws.size()) || logits.shape(1) == 0) {
    throw std::invalid_argument("sample_rows: logits must be [S, V] for S draws");
  }
  std::vector<Draw> wanted;
  for (const auto& [temperature, top_k, top_p, min_p, uniform] : draws) {
    wanted.push_back({temperature, top_k, top_p, min_p, uniform});
  }
  auto primitive = std::make_shared<SampleRows>(mx::to_stream(s), std::move(wanted));
  auto outputs = mx::array::make_arrays({{logits.shape(0)}, {logits.shape(0)}}, {mx::uint32, mx::bool_}, primitive,
                                        {logits});
  return {outputs[0], outputs[1]};
}

}  // namespace

void bind_sampling(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("sample_rows", &sample_rows, "logits"_a, "draws"_a, nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
