// Rows of quantized embedding tables.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <stdexcept>

#include "core/threads.h"
#include "primitives/bind.h"
#include "primitives/quantized.h"

namespace umlm {
namespace {

// Values that are worth a thread's wake-up.
constexpr int64_t kWorth = 16384;

// Before any thread starts: exceptions reach the caller of eval from its own thread alone.
void check(const int32_t* ids, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= rows) {
      throw std::out_of_range("embedding: id " + std::to_string(ids[i]) + " is not in a table of " +
                              std::to_string(rows) + " rows");
    }
  }
}

void read_row(const QuantizedMatrix& w, int64_t id, Type type, float* wide, void* out) {
  float* values = type == Type::f32 ? static_cast<float*>(out) : wide;
  kernels().quantized.dequantize_row(w, id, values);
  if (type != Type::f32) {
    kernels().rows.narrow(values, type, w.columns, out);
  }
}

class Embedding : public CpuPrimitive {
 public:
  Embedding(mx::Stream stream, Coding coding, int64_t columns)
      : CpuPrimitive(stream), coding_(coding), columns_(columns) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(result_memory(out.nbytes()));
    if (out.size() == 0) return;
    const Type type = type_of(out.dtype());
    const int64_t count = inputs[0].size(), row_bytes = columns_ * out.itemsize();
    auto* result = out.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, ids = RowMajor(inputs[0]), stored = StoredMatrix(inputs, 1, coding_, columns_)]() {
          const QuantizedMatrix w = stored.matrix();
          const auto* id = reinterpret_cast<const int32_t*>(ids.data());
          check(id, count, w.rows);
          parallel_for(count, kWorth / w.columns + 1, [&](int64_t begin, int64_t end) {
            Scratch wide(type == Type::f32 ? 0 : w.columns * sizeof(float));
            for (int64_t i = begin; i < end; ++i) {
              read_row(w, id[i], type, reinterpret_cast<float*>(wide.data()), result + i * row_bytes);
            }
          });
        });
  }

  const char* name() const override { return "UmlmEmbedding"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const Embedding&>(other);
    return coding_ == same.coding_ && columns_ == same.columns_;
  }

 private:
  Coding coding_;
  int64_t columns_;
};

// Rows `ids` of a quantized table, [..., columns] in `dtype`.
mx::array embedding(const mx::array& ids, const mx::array& weight, const std::optional<mx::array>& scales,
                    const std::optional<mx::array>& biases, const std::string& layout, int group_size, int64_t columns,
                    mx::Dtype dtype, mx::StreamOrDevice s) {
  type_of(dtype);
  std::vector<mx::array> inputs = stored_arrays(weight, scales, biases);
  inputs.insert(inputs.begin(), mx::astype(ids, mx::int32, s));
  auto shape = ids.shape();
  shape.push_back(static_cast<int>(columns));
  auto primitive = std::make_shared<Embedding>(mx::to_stream(s), coding_of(layout, group_size), columns);
  return mx::array(shape, dtype, primitive, std::move(inputs));
}

}  // namespace

void bind_embedding(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("embedding", &embedding, "ids"_a, "weight"_a, "scales"_a.none(), "biases"_a.none(), "layout"_a, "group_size"_a,
        "columns"_a, "dtype"_a, nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
