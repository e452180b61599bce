// Attention to keys in pages or in one array.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "primitives/bind.h"
#include "primitives/pages.h"

namespace umlm {
namespace {

// Key i has position base + i: then positions count from there and keys need none.
void count_from_first_key(std::vector<int32_t>& positions, const int32_t*& key_positions, int64_t keys) {
  const int32_t base = keys > 0 ? key_positions[0] : 0;
  for (int64_t i = 0; i < keys; ++i) {
    if (key_positions[i] != base + i) return;
  }
  for (int32_t& position : positions) position -= base;
  key_positions = nullptr;
}

class AttentionPrimitive : public CpuPrimitive {
 public:
  // table null: inputs are q, k, v, positions, key positions; else q, pages of k and v, positions; sinks may follow
  AttentionPrimitive(mx::Stream stream, std::shared_ptr<PageTable> table, int64_t page_size, KeptRows k, KeptRows v,
                     Options options)
      : CpuPrimitive(stream), table_(std::move(table)), page_size_(page_size), k_(k), v_(v), options_(options) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(result_memory(out.nbytes()));
    std::vector<RowMajor> rows(inputs.begin(), inputs.end());
    Attention a = shapes(inputs);
    a.out = out.data<uint8_t>();
    const int64_t batch = inputs[0].shape(0);
    mx::cpu::get_command_encoder(stream()).dispatch([=, table = table_]() mutable {
      a.q = rows[0].data(), a.k.base = rows[1].data(), a.v.base = rows[2].data();
      a.positions = reinterpret_cast<const int32_t*>(rows[3].data());
      const size_t sinks = table == nullptr ? 5 : 4;
      a.sinks = rows.size() > sinks ? reinterpret_cast<const float*>(rows[sinks].data()) : nullptr;
      if (table != nullptr) {
        Plan(requests(a, *table)).run();
        return;
      }
      a.key_positions = reinterpret_cast<const int32_t*>(rows[4].data());
      std::vector<int32_t> positions(a.positions, a.positions + a.queries);
      count_from_first_key(positions, a.key_positions, a.keys);
      a.positions = positions.data();
      Plan(sequences(a, batch)).run();
    });
  }

  const char* name() const override { return "UmlmAttention"; }

 private:
  Attention shapes(const std::vector<mx::array>& inputs) const {
    const mx::array &q = inputs[0], &k = inputs[1];
    Attention a{};
    a.queries = q.shape(1), a.heads = q.shape(2), a.head_dim = q.shape(3);
    a.keys = k.shape(-3), a.kv_heads = k.shape(-2), a.v_head_dim = options_.v_head_dim;
    a.q_type = type_of(q.dtype()), a.k = k_, a.v = v_;
    a.page_size = page_size_;
    a.window = options_.window, a.scale = options_.scale, a.softcap = options_.softcap;
    return a;
  }

  static std::vector<Attention> sequences(const Attention& first, int64_t batch) {
    std::vector<Attention> all;
    for (int64_t b = 0; b < batch; ++b) {
      Attention a = from_query(first, b * first.queries);
      for (KeptRows* rows : {&a.k, &a.v}) {
        rows->base = static_cast<const uint8_t*>(rows->base) + b * a.keys * a.kv_heads * rows->bytes;
      }
      all.push_back(a);
    }
    return all;
  }

  std::shared_ptr<PageTable> table_;
  int64_t page_size_;
  KeptRows k_, v_;
  Options options_;
};

// bits of k and v: 0 where they are floats
mx::array attend(const mx::array& q, std::vector<mx::array> inputs, const std::optional<mx::array>& sinks,
                 std::shared_ptr<PageTable> table, int64_t page_size, int k_bits, int v_bits, Options options,
                 mx::StreamOrDevice s) {
  auto shape = q.shape();
  shape.back() = static_cast<mx::ShapeElem>(options.v_head_dim);
  const KeptRows k = kept_rows(inputs[1], k_bits, q.shape(-1)), v = kept_rows(inputs[2], v_bits, options.v_head_dim);
  if (sinks) inputs.push_back(mx::astype(*sinks, mx::float32, s));
  auto primitive = std::make_shared<AttentionPrimitive>(mx::to_stream(s), std::move(table), page_size, k, v, options);
  return mx::array(shape, q.dtype(), primitive, std::move(inputs));
}

mx::array paged_attention(const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& positions,
                          std::shared_ptr<PageTable> table, int64_t page_size, float scale, int64_t window,
                          float softcap, const std::optional<mx::array>& sinks, int k_bits, int v_bits,
                          int64_t v_head_dim, mx::StreamOrDevice s) {
  table->check(q.shape(1), std::min(k.shape(0), v.shape(0)), page_size);
  return attend(q, {q, k, v, mx::astype(positions, mx::int32, s)}, sinks, table, page_size, k_bits, v_bits,
                {scale, softcap, window, v_head_dim}, s);
}

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& positions,
                    const mx::array& key_positions, float scale, int64_t window, float softcap,
                    const std::optional<mx::array>& sinks, mx::StreamOrDevice s) {
  return attend(q, {q, k, v, mx::astype(positions, mx::int32, s), mx::astype(key_positions, mx::int32, s)}, sinks,
                nullptr, 1, 0, 0, {scale, softcap, window, v.shape(-1)}, s);
}

// values [T, heads, dims]
void write_pages(mx::array& pages, const mx::array& slots, const mx::array& values, int bits, mx::StreamOrDevice s) {
  if (pages.ndim() != 3 || values.ndim() != 3 || pages.shape(1) != values.shape(1)) {
    throw std::invalid_argument("pages [slots, heads, ..] take values [tokens, heads, dims] of as many heads");
  }
  const int64_t dims = values.shape(2);
  write_rows(pages, mx::astype(slots, mx::int32, s), values, kept_rows(pages, bits, dims), values.shape(1), dims, 0,
             mx::to_stream(s));
}

}  // namespace

void bind_attention(nanobind::module_& m) {
  using namespace nanobind::literals;
  nanobind::class_<PageTable>(m, "PageTable", "The pages of the requests of a packed row, for all layers.")
      .def(nanobind::init<const std::vector<std::vector<int32_t>>&, std::vector<int64_t>, std::vector<int64_t>>(),
           "pages"_a, "starts"_a, "contexts"_a);
  m.def("paged_attention", &paged_attention, "q"_a, "k_pages"_a, "v_pages"_a, "positions"_a, "table"_a, "page_size"_a,
        "scale"_a, "window"_a, "softcap"_a, "sinks"_a.none(), "k_bits"_a, "v_bits"_a, "v_head_dim"_a,
        nanobind::kw_only(), "stream"_a = nanobind::none());
  m.def("write_pages", &write_pages, "pages"_a, "slots"_a, "values"_a, "bits"_a = 0, nanobind::kw_only(),
        "stream"_a = nanobind::none(), "Let `pages` be the pages with the values written; in place where it can be.");
  m.def("attention", &attention, "q"_a, "k"_a, "v"_a, "q_positions"_a, "k_positions"_a, "scale"_a, "window"_a = 0,
        "softcap"_a = 0.0f, "sinks"_a.none() = nanobind::none(), nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
