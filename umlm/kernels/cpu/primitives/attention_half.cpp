// norm, q, k, v, rope, page write, attention, output, residual: half a block as one operation.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "primitives/attention.h"
#include "primitives/bind.h"
#include "primitives/halves.h"

namespace umlm {
namespace {

// Norms and projections of an attention layer. projections: q, k, v, or one whose outputs are these one after another.
struct AttentionShape {
  int64_t heads, kv_heads, head_dim, window;
  float scale, softcap, rope_scale;
  float eps, offset, q_eps, q_offset, k_eps, k_offset, post_eps, post_offset;
  std::vector<ProjectionKind> kinds;
  std::vector<int> firsts;
  ProjectionKind o;
  int o_at;
  int norm_at;
  std::optional<int> q_norm_at, k_norm_at, post_at;
};

// The places of what changes from call to call among the inputs.
enum : int { kX, kPositions, kSlots, kKeys, kValues, kFrequencies, kFixed };

class AttentionHalfPrimitive : public mx::Primitive {
 public:
  AttentionHalfPrimitive(mx::Stream stream, std::shared_ptr<const AttentionShape> shape,
                         std::shared_ptr<PageTable> table, int64_t page_size)
      : Primitive(stream), shape_(std::move(shape)), table_(std::move(table)), page_size_(page_size) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
    allocate_like(inputs[kKeys], outputs[1]);
    allocate_like(inputs[kValues], outputs[2]);
    auto work = std::make_shared<Work>(inputs, outputs, shape_, table_, page_size_);
    mx::cpu::get_command_encoder(stream()).dispatch([work]() { work->run(); });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("UmlmAttentionHalf runs on CPUs and was asked to run on a GPU");
  }
  const char* name() const override { return "UmlmAttentionHalf"; }

 private:
  struct Pages {
    RowMajor old;
    uint8_t* data;
    Type type;
    size_t bytes;
    bool in_place;

    Pages(const mx::array& in, mx::array& out)
        : old(in),
          data(out.data<uint8_t>()),
          type(type_of(in.dtype())),
          bytes(in.nbytes()),
          in_place(out.data<uint8_t>() == in.data<uint8_t>()) {}
  };

  struct Work {
    std::shared_ptr<const AttentionShape> s;
    std::shared_ptr<PageTable> table;
    int64_t page_size, rows, columns, half;
    RowMajor x, positions, slots, frequencies;
    bool turned, per_token;
    Pages keys, values;
    NormInput norm;
    std::optional<NormInput> q_norm, k_norm, post;
    std::vector<Projection> projections;
    Projection o;
    float* out;

    Work(const std::vector<mx::array>& in, std::vector<mx::array>& outputs, std::shared_ptr<const AttentionShape> shape,
         std::shared_ptr<PageTable> table, int64_t page_size)
        : s(std::move(shape)),
          table(std::move(table)),
          page_size(page_size),
          rows(in[kX].size() / in[kX].shape(-1)),
          columns(in[kX].shape(-1)),
          half(in[kFrequencies].shape(-1)),
          x(in[kX]),
          positions(in[kPositions]),
          slots(in[kSlots]),
          frequencies(in[kFrequencies]),
          turned(in[kFrequencies].dtype() == mx::float32),
          per_token(in[kFrequencies].ndim() > 1),
          keys(in[kKeys], outputs[1]),
          values(in[kValues], outputs[2]),
          norm(in[s->norm_at], s->eps, s->offset),
          o(in, s->o_at, s->o),
          out(outputs[0].data<float>()) {
      if (s->q_norm_at) q_norm.emplace(in[*s->q_norm_at], s->q_eps, s->q_offset);
      if (s->k_norm_at) k_norm.emplace(in[*s->k_norm_at], s->k_eps, s->k_offset);
      if (s->post_at) post.emplace(in[*s->post_at], s->post_eps, s->post_offset);
      for (size_t i = 0; i < s->kinds.size(); ++i) projections.emplace_back(in, s->firsts[i], s->kinds[i]);
    }

    void run() {
      const int64_t q_width = s->heads * s->head_dim, kv_width = s->kv_heads * s->head_dim;
      const int64_t width = q_width + 2 * kv_width;
      Scratch memory(rows * (2 * columns + width + 2 * q_width) * sizeof(float));
      auto* normed = reinterpret_cast<float*>(memory.data());
      auto *projected = normed + rows * columns, *queries = projected + rows * width;
      auto *attended = queries + rows * q_width, *y = attended + rows * q_width;
      const auto* from = reinterpret_cast<const float*>(x.data());
      norm.run(from, rows, columns, normed);
      project_all(normed, projected);
      write_all(projected, queries);
      attend(queries, attended);
      Activations inner(attended, rows);
      o.begin(inner, y);
      project({&o});
      add_residual(from, y, post ? &*post : nullptr, rows, columns, out);
    }

    void project_all(const float* normed, float* projected) {
      Activations activations(normed, rows);
      std::vector<Projection*> all;
      for (Projection& projection : projections) {
        projection.begin(activations, projected);
        projected += rows * projection.outputs();
        all.push_back(&projection);
      }
      project(all);
    }

    // Norms and rope; queries to their own rows, keys and values to their slots.
    void write_all(const float* projected, float* queries) {
      for (Pages* pages : {&keys, &values}) {
        if (!pages->in_place) std::memcpy(pages->data, pages->old.data(), pages->bytes);
      }
      const int64_t q_width = s->heads * s->head_dim, kv_width = s->kv_heads * s->head_dim;
      const bool fused = projections.size() == 1;
      const int64_t width = fused ? q_width + 2 * kv_width : 0;
      const float* k = fused ? projected + q_width : projected + rows * q_width;
      const float* v = fused ? k + kv_width : k + rows * kv_width;
      const int64_t q_stride = fused ? width : q_width, kv_stride = fused ? width : kv_width;
      const auto* places = reinterpret_cast<const int32_t*>(positions.data());
      const auto* freq = reinterpret_cast<const float*>(frequencies.data());
      const auto* at = reinterpret_cast<const int32_t*>(slots.data());
      const uint8_t* q_weight = q_norm ? q_norm->weight.data() : nullptr;
      const uint8_t* k_weight = k_norm ? k_norm->weight.data() : nullptr;
      parallel_for(rows, 16384 / (q_width + 2 * kv_width) + 1, [&](int64_t begin, int64_t end) {
        const RopeKernels& kernel = kernels().rope;
        std::vector<float> turns(2 * half), scratch(std::max(s->head_dim, kv_width)), key(kv_width);
        for (int64_t t = begin; t < end; ++t) {
          if (turned) kernel.turns(places[t], freq + (per_token ? t * half : 0), half, s->rope_scale, turns.data());
          auto place = [&](const float* row, int64_t heads, const std::optional<NormInput>& norm, const uint8_t* weight,
                           float* to) {
            if (norm) {
              kernels().rows.rms_norm(row, Type::f32, weight, norm->type, norm->offset, norm->eps, heads, s->head_dim,
                                      to);
              row = to;
            }
            if (turned) {
              kernel.rope_rows(row, Type::f32, heads, s->head_dim, half, turns.data(), false, scratch.data(), to);
            } else if (row != to) {
              std::memcpy(to, row, heads * s->head_dim * sizeof(float));
            }
          };
          place(projected + t * q_stride, s->heads, q_norm, q_weight, queries + t * q_width);
          place(k + t * kv_stride, s->kv_heads, k_norm, k_weight, key.data());
          kernel.write_rows(key.data(), Type::f32, 1, kv_width, at + t, keys.data, keys.type, scratch.data());
          kernel.write_rows(v + t * kv_stride, Type::f32, 1, kv_width, at + t, values.data, values.type,
                            scratch.data());
        }
      });
    }

    void attend(const float* queries, float* attended) {
      Attention a{};
      a.queries = rows, a.heads = s->heads, a.kv_heads = s->kv_heads;
      a.head_dim = a.v_head_dim = s->head_dim;
      a.q_type = Type::f32, a.type = keys.type;
      a.q = queries, a.k = keys.data, a.v = values.data, a.out = attended;
      a.page_size = page_size;
      a.positions = reinterpret_cast<const int32_t*>(positions.data());
      a.window = s->window, a.scale = s->scale, a.softcap = s->softcap;
      const std::vector<Attention> all = requests(a, *table);
      Plan(all).run();
    }
  };

  std::shared_ptr<const AttentionShape> shape_;
  std::shared_ptr<PageTable> table_;
  int64_t page_size_;
};

// Made once per layer.
class AttentionHalf {
 public:
  AttentionHalf(const Norm& norm, const std::vector<Weights>& projections, const Weights& o, int64_t heads,
                int64_t kv_heads, int64_t head_dim, float scale, float rope_scale, int64_t window, float softcap,
                const std::optional<Norm>& q_norm, const std::optional<Norm>& k_norm, const std::optional<Norm>& post) {
    auto s = std::make_shared<AttentionShape>();
    s->heads = heads, s->kv_heads = kv_heads, s->head_dim = head_dim, s->window = window;
    s->scale = scale, s->softcap = softcap, s->rope_scale = rope_scale;
    Parts parts;
    parts.inputs.assign(kFixed, norm.weight);  // the places of what changes
    auto add = [&](const Norm& norm, float& eps, float& offset) {
      eps = norm.eps, offset = norm.offset;
      return parts.add(norm.weight);
    };
    s->norm_at = add(norm, s->eps, s->offset);
    if (q_norm) s->q_norm_at = add(*q_norm, s->q_eps, s->q_offset);
    if (k_norm) s->k_norm_at = add(*k_norm, s->k_eps, s->k_offset);
    if (post) s->post_at = add(*post, s->post_eps, s->post_offset);
    for (const Weights& weights : projections) {
      s->kinds.push_back(weights.kind);
      s->firsts.push_back(parts.add(weights));
    }
    s->o = o.kind;
    s->o_at = parts.add(o);
    shape_ = std::move(s);
    inputs_ = std::move(parts.inputs);
  }

  // x float32 [1, T, columns]; keys and values become the written pages, in place where it can be.
  mx::array operator()(const mx::array& x, const mx::array& positions, const std::optional<mx::array>& inv_freq,
                       mx::array& keys, mx::array& values, const mx::array& slots, std::shared_ptr<PageTable> table,
                       int64_t page_size, mx::StreamOrDevice s) const {
    if (x.dtype() != mx::float32) throw std::invalid_argument("a fused half takes float32 activations");
    if (positions.dtype() != mx::int32 || slots.dtype() != mx::int32) {
      throw std::invalid_argument("a fused half takes int32 positions and slots");
    }
    table->check(x.shape(-2), keys.shape(0), page_size);
    auto inputs = inputs_;
    inputs[kX] = x;
    inputs[kPositions] = positions;
    inputs[kSlots] = slots;
    inputs[kKeys] = keys;
    inputs[kValues] = values;
    inputs[kFrequencies] = inv_freq ? *inv_freq : positions;  // no float32: nothing is turned
    auto primitive =
        std::make_shared<AttentionHalfPrimitive>(mx::to_stream(s), shape_, std::move(table), page_size);
    auto outputs = mx::array::make_arrays({x.shape(), keys.shape(), values.shape()},
                                          {mx::float32, keys.dtype(), values.dtype()}, primitive, std::move(inputs));
    keys.overwrite_descriptor(outputs[1]);
    values.overwrite_descriptor(outputs[2]);
    return outputs[0];
  }

 private:
  std::shared_ptr<const AttentionShape> shape_;
  std::vector<mx::array> inputs_;
};

}  // namespace

void bind_attention_half(nanobind::module_& m) {
  using namespace nanobind::literals;
  namespace nb = nanobind;
  nb::class_<AttentionHalf>(m, "AttentionHalf")
      .def(nb::init<const Norm&, const std::vector<Weights>&, const Weights&, int64_t, int64_t, int64_t, float, float,
                    int64_t, float, const std::optional<Norm>&, const std::optional<Norm>&,
                    const std::optional<Norm>&>(),
           "norm"_a, "projections"_a, "o"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a, "rope_scale"_a,
           "window"_a, "softcap"_a, "q_norm"_a.none(), "k_norm"_a.none(), "post"_a.none())
      .def("__call__", &AttentionHalf::operator(), "x"_a, "positions"_a, "inv_freq"_a.none(), "keys"_a, "values"_a,
           "slots"_a, "table"_a, "page_size"_a, "stream"_a = nb::none());
}

}  // namespace umlm
