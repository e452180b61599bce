// norm, q, k, v, rope; page write; attention, output, residual: half a block in four operations.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "primitives/bind.h"
#include "primitives/blocks.h"
#include "primitives/halves.h"
#include "primitives/pages.h"

namespace umlm {
namespace {

struct HeadShape {
  int64_t heads, kv_heads, head_dim;

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t width() const { return q_width() + 2 * kv_width(); }
};

// projections: q, k, v, or one whose outputs are these one after another. Places are those of the inputs.
struct QkvShape {
  HeadShape heads;
  float rope_scale;
  float eps, offset, q_eps, q_offset, k_eps, k_offset;
  std::vector<ProjectionKind> kinds;
  std::vector<int> firsts;
  int norm_at;
  std::optional<int> q_norm_at, k_norm_at;
};

// x [1, T, columns] -> q [T, q_width], k [T, kv_width], v [T, kv_width], one after another: float32, rounded to x's type.
class QkvPrimitive : public CpuPrimitive {
 public:
  enum : int { kX, kPositions, kFrequencies, kFixed };

  QkvPrimitive(mx::Stream stream, std::shared_ptr<const QkvShape> shape)
      : CpuPrimitive(stream), shape_(std::move(shape)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(result_memory(out.nbytes()));
    auto work = std::make_shared<Work>(inputs, shape_, precision_);
    mx::cpu::get_command_encoder(stream()).dispatch(
        [work, x = RowMajor(inputs[kX]), result = out.data<float>()]() { work->run(x.data(), result); });
  }
  const char* name() const override { return "UmlmQkvHalf"; }

  struct Work {
    std::shared_ptr<const QkvShape> s;
    int64_t rows, columns, half;
    RowMajor positions, frequencies;
    Type type;
    Precision precision;
    bool turned, per_token;
    NormInput norm;
    std::optional<NormInput> q_norm, k_norm;
    std::vector<Projection> projections;

    Work(const std::vector<mx::array>& in, std::shared_ptr<const QkvShape> shape, Precision precision)
        : s(std::move(shape)),
          rows(in[kX].size() / in[kX].shape(-1)),
          columns(in[kX].shape(-1)),
          half(in[kFrequencies].shape(-1)),
          positions(in[kPositions]),
          frequencies(in[kFrequencies]),
          type(type_of(in[kX].dtype())),
          precision(precision),
          turned(in[kFrequencies].dtype() == mx::float32),
          per_token(in[kFrequencies].ndim() > 1),
          norm(in[s->norm_at], s->eps, s->offset) {
      if (s->q_norm_at) q_norm.emplace(in[*s->q_norm_at], s->q_eps, s->q_offset);
      if (s->k_norm_at) k_norm.emplace(in[*s->k_norm_at], s->k_eps, s->k_offset);
      for (size_t i = 0; i < s->kinds.size(); ++i) projections.emplace_back(in, s->firsts[i], s->kinds[i]);
    }

    void run(const void* x, float* out) {
      const int64_t width = s->heads.width();
      Scratch memory(rows * (columns + width) * sizeof(float));
      auto* normed = reinterpret_cast<float*>(memory.data());
      auto* projected = normed + rows * columns;
      const WideRows wide(x, type, rows * columns);
      norm.run(wide.data(), type, rows, columns, normed);
      Activations activations(normed, type, precision, rows, columns);
      std::vector<Projection*> all;
      float* to = projected;
      for (Projection& projection : projections) {
        projection.begin(activations, to);
        to += rows * projection.outputs();
        all.push_back(&projection);
      }
      project(all);
      place(projected, out);
    }

    // Norms and rope, each head by itself, into the order of the result.
    void place(const float* projected, float* out) {
      const int64_t q_width = s->heads.q_width(), kv_width = s->heads.kv_width();
      const bool fused = projections.size() == 1;
      const int64_t q_stride = fused ? s->heads.width() : q_width, kv_stride = fused ? s->heads.width() : kv_width;
      const float* k = projected + (fused ? 1 : rows) * q_width;
      const float* v = k + (fused ? 1 : rows) * kv_width;
      float *q_out = out, *k_out = q_out + rows * q_width, *v_out = k_out + rows * kv_width;
      const auto* places = reinterpret_cast<const int32_t*>(positions.data());
      const auto* freq = reinterpret_cast<const float*>(frequencies.data());
      const uint8_t* q_weight = q_norm ? q_norm->weight.data() : nullptr;
      const uint8_t* k_weight = k_norm ? k_norm->weight.data() : nullptr;
      parallel_for(rows, 16384 / s->heads.width() + 1, [&](int64_t begin, int64_t end) {
        std::vector<float> turns(2 * half + s->heads.head_dim);
        float* scratch = turns.data() + 2 * half;
        for (int64_t t = begin; t < end; ++t) {
          if (turned) {
            kernels().rope.turns(places[t], freq + (per_token ? t * half : 0), half, s->rope_scale, turns.data());
          }
          place_heads(projected + t * q_stride, s->heads.heads, q_norm, q_weight, turns.data(), scratch,
                      q_out + t * q_width);
          place_heads(k + t * kv_stride, s->heads.kv_heads, k_norm, k_weight, turns.data(), scratch,
                      k_out + t * kv_width);
          std::memcpy(v_out + t * kv_width, v + t * kv_stride, kv_width * sizeof(float));
        }
      });
    }

    void place_heads(const float* row, int64_t heads, const std::optional<NormInput>& head_norm, const uint8_t* weight,
                     const float* turns, float* scratch, float* to) const {
      const int64_t dim = s->heads.head_dim;
      if (head_norm) {
        kernels().rows.rms_norm(row, Type::f32, weight, head_norm->type, head_norm->offset, head_norm->eps, heads, dim,
                                to);
        round_to(type, to, heads * dim);
        row = to;
      }
      if (turned) {
        kernels().rope.rope_rows(row, Type::f32, heads, dim, half, turns, false, scratch, to);
        round_to(type, to, heads * dim);
      } else if (row != to) {
        std::memcpy(to, row, heads * dim * sizeof(float));
      }
    }
  };

 private:
  std::shared_ptr<const QkvShape> shape_;
};

struct AttendShape {
  HeadShape heads;
  int64_t window;
  float scale, softcap, post_eps, post_offset;
  ProjectionKind o;
  int o_at;
  std::optional<int> post_at;
};

// x + post(o(attention)), the queries from QkvPrimitive's result.
class AttendHalfPrimitive : public CpuPrimitive {
 public:
  enum : int { kX, kQkv, kKeys, kValues, kPositions, kFixed };

  AttendHalfPrimitive(mx::Stream stream, std::shared_ptr<const AttendShape> shape, std::shared_ptr<PageTable> table,
                      int64_t page_size, KeptRows k, KeptRows v)
      : CpuPrimitive(stream),
        shape_(std::move(shape)),
        table_(std::move(table)),
        page_size_(page_size),
        k_(k),
        v_(v) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(result_memory(out.nbytes()));
    auto work = std::make_shared<Work>(inputs, shape_, table_, page_size_, k_, v_, precision_);
    mx::cpu::get_command_encoder(stream()).dispatch(
        [work, x = RowMajor(inputs[kX]), qkv = RowMajor(inputs[kQkv]), keys = RowMajor(inputs[kKeys]),
         values = RowMajor(inputs[kValues]), result = out.data<uint8_t>()]() {
          work->run(x.data(), qkv.data(), keys.data(), values.data(), result);
        });
  }
  const char* name() const override { return "UmlmAttendHalf"; }

  struct Work {
    std::shared_ptr<const AttendShape> s;
    std::shared_ptr<PageTable> table;
    int64_t page_size, rows, columns;
    RowMajor positions;
    Type type;
    Precision precision;
    KeptRows k, v;
    Projection o;
    std::optional<NormInput> post;

    Work(const std::vector<mx::array>& in, std::shared_ptr<const AttendShape> shape, std::shared_ptr<PageTable> table,
         int64_t page_size, KeptRows k, KeptRows v, Precision precision)
        : s(std::move(shape)),
          table(std::move(table)),
          page_size(page_size),
          rows(in[kX].size() / in[kX].shape(-1)),
          columns(in[kX].shape(-1)),
          positions(in[kPositions]),
          type(type_of(in[kX].dtype())),
          precision(precision),
          k(k),
          v(v),
          o(in, s->o_at, s->o) {
      if (s->post_at) post.emplace(in[*s->post_at], s->post_eps, s->post_offset);
    }

    void run(const void* x, const void* qkv, const void* keys, const void* values, void* out) {
      const int64_t q_width = s->heads.q_width();
      Scratch memory(rows * (q_width + columns) * sizeof(float));
      auto* attended = reinterpret_cast<float*>(memory.data());
      auto* y = attended + rows * q_width;
      attend(qkv, keys, values, attended);
      round_to(type, attended, rows * q_width);
      Activations activations(attended, type, precision, rows, q_width);
      o.begin(activations, y);
      project({&o});
      const WideRows wide(x, type, rows * columns);
      add_residual(wide.data(), y, post ? &*post : nullptr, type, rows, columns, out);
    }

    void attend(const void* qkv, const void* keys, const void* values, float* attended) {
      Attention a{};
      a.queries = rows, a.heads = s->heads.heads, a.kv_heads = s->heads.kv_heads;
      a.head_dim = a.v_head_dim = s->heads.head_dim;
      a.q_type = Type::f32, a.k = k, a.v = v;
      a.q = qkv, a.k.base = keys, a.v.base = values, a.out = attended;
      a.page_size = page_size;
      a.positions = reinterpret_cast<const int32_t*>(positions.data());
      a.window = s->window, a.scale = s->scale, a.softcap = s->softcap;
      const std::vector<Attention> all = requests(a, *table);
      Plan(all).run();
    }
  };

 private:
  std::shared_ptr<const AttendShape> shape_;
  std::shared_ptr<PageTable> table_;
  int64_t page_size_;
  KeptRows k_, v_;
};

// The whole half as one step, which writes into the pages that it is given.
struct Step : AttentionStep {
  QkvPrimitive::Work qkv;
  AttendHalfPrimitive::Work attend;
  HeadShape heads;
  RowMajor slots;
  uint8_t *keys, *values;

  void run(const void* x, void* out) override {
    const int64_t rows = qkv.rows, kv_width = heads.kv_width();
    Scratch memory(rows * heads.width() * sizeof(float));
    auto* made = reinterpret_cast<float*>(memory.data());
    qkv.run(x, made);
    const auto* to = reinterpret_cast<const int32_t*>(slots.data());
    const float *k = made + rows * heads.q_width(), *v = k + rows * kv_width;
    write_into(keys, attend.k.kind, k, Type::f32, rows, heads.kv_heads, heads.head_dim, to);
    write_into(values, attend.v.kind, v, Type::f32, rows, heads.kv_heads, heads.head_dim, to);
    attend.run(x, made, keys, values, out);
  }

  Step(QkvPrimitive::Work qkv, AttendHalfPrimitive::Work attend, const HeadShape& heads, const BlockCall& call)
      : qkv(std::move(qkv)),
        attend(std::move(attend)),
        heads(heads),
        slots(call.pages.slots),
        keys(const_cast<uint8_t*>(call.keys.data<uint8_t>())),
        values(const_cast<uint8_t*>(call.values.data<uint8_t>())) {}
};

// Made once per layer.
class AttentionHalf : public AttentionOperation {
 public:
  AttentionHalf(const Norm& norm, const std::vector<Weights>& projections, const Weights& o, int64_t heads,
                int64_t kv_heads, int64_t head_dim, float scale, float rope_scale, int64_t window, float softcap,
                const std::optional<Norm>& q_norm, const std::optional<Norm>& k_norm, const std::optional<Norm>& post) {
    const HeadShape shape{heads, kv_heads, head_dim};
    make_qkv(shape, norm, projections, rope_scale, q_norm, k_norm);
    make_attend(shape, norm, o, scale, window, softcap, post);
    all_ = qkv_inputs_;
    all_.insert(all_.end(), attend_inputs_.begin(), attend_inputs_.end());
  }

  mx::array operator()(const mx::array& x, const mx::array& positions, const std::optional<mx::array>& inv_freq,
                       mx::array& keys, mx::array& values, const mx::array& slots, std::shared_ptr<PageTable> table,
                       int64_t page_size, int k_bits, int v_bits, mx::StreamOrDevice s) const {
    type_of(x.dtype());  // refuses others
    if (positions.dtype() != mx::int32 || slots.dtype() != mx::int32) {
      throw std::invalid_argument("a fused half takes int32 positions and slots");
    }
    table->check(x.shape(-2), std::min(keys.shape(0), values.shape(0)), page_size);
    const mx::Stream stream = mx::to_stream(s);
    const HeadShape& heads = qkv_->heads;
    const KeptRows k = kept_rows(keys, k_bits, heads.head_dim);
    const KeptRows v = kept_rows(values, v_bits, heads.head_dim);
    const mx::array qkv = project_qkv(x, positions, inv_freq, stream);
    const int64_t tokens = x.shape(-2), q_size = tokens * heads.q_width(), k_size = tokens * heads.kv_width();
    write_rows(keys, slots, qkv, k, heads.kv_heads, heads.head_dim, q_size, stream);
    write_rows(values, slots, qkv, v, heads.kv_heads, heads.head_dim, q_size + k_size, stream);
    auto inputs = attend_inputs_;
    inputs[AttendHalfPrimitive::kX] = x;
    inputs[AttendHalfPrimitive::kQkv] = qkv;
    inputs[AttendHalfPrimitive::kKeys] = keys;
    inputs[AttendHalfPrimitive::kValues] = values;
    inputs[AttendHalfPrimitive::kPositions] = positions;
    auto primitive = std::make_shared<AttendHalfPrimitive>(stream, attend_, std::move(table), page_size, k, v);
    return mx::array(x.shape(), x.dtype(), primitive, std::move(inputs));
  }

  std::unique_ptr<AttentionStep> step(const BlockCall& call) const override {
    const HeadShape& heads = qkv_->heads;
    const KeptRows k = kept_rows(call.keys, call.pages.k_bits, heads.head_dim);
    const KeptRows v = kept_rows(call.values, call.pages.v_bits, heads.head_dim);
    auto first = qkv_inputs_, second = attend_inputs_;
    first[QkvPrimitive::kX] = second[AttendHalfPrimitive::kX] = call.x;
    first[QkvPrimitive::kPositions] = second[AttendHalfPrimitive::kPositions] = call.pages.positions;
    first[QkvPrimitive::kFrequencies] = call.inv_freq;
    return std::make_unique<Step>(
        QkvPrimitive::Work(first, qkv_, call.precision),
        AttendHalfPrimitive::Work(second, attend_, call.pages.table, call.pages.page_size, k, v, call.precision), heads,
        call);
  }
  const std::vector<mx::array>& weights() const override { return all_; }

 private:
  void make_qkv(const HeadShape& shape, const Norm& norm, const std::vector<Weights>& projections, float rope_scale,
                const std::optional<Norm>& q_norm, const std::optional<Norm>& k_norm) {
    auto s = std::make_shared<QkvShape>();
    s->heads = shape, s->rope_scale = rope_scale;
    Parts parts;
    parts.inputs.assign(QkvPrimitive::kFixed, norm.weight);  // the places of what changes
    auto add = [&](const Norm& part, float& eps, float& offset) {
      eps = part.eps, offset = part.offset;
      return parts.add(part.weight);
    };
    s->norm_at = add(norm, s->eps, s->offset);
    if (q_norm) s->q_norm_at = add(*q_norm, s->q_eps, s->q_offset);
    if (k_norm) s->k_norm_at = add(*k_norm, s->k_eps, s->k_offset);
    for (const Weights& weights : projections) {
      s->kinds.push_back(weights.kind);
      s->firsts.push_back(parts.add(weights));
    }
    qkv_ = std::move(s);
    qkv_inputs_ = std::move(parts.inputs);
  }

  void make_attend(const HeadShape& shape, const Norm& norm, const Weights& o, float scale, int64_t window,
                   float softcap, const std::optional<Norm>& post) {
    auto s = std::make_shared<AttendShape>();
    s->heads = shape, s->window = window, s->scale = scale, s->softcap = softcap;
    Parts parts;
    parts.inputs.assign(AttendHalfPrimitive::kFixed, norm.weight);
    if (post) {
      s->post_eps = post->eps, s->post_offset = post->offset;
      s->post_at = parts.add(post->weight);
    }
    s->o = o.kind;
    s->o_at = parts.add(o);
    attend_ = std::move(s);
    attend_inputs_ = std::move(parts.inputs);
  }

  mx::array project_qkv(const mx::array& x, const mx::array& positions, const std::optional<mx::array>& inv_freq,
                        mx::Stream stream) const {
    auto inputs = qkv_inputs_;
    inputs[QkvPrimitive::kX] = x;
    inputs[QkvPrimitive::kPositions] = positions;
    inputs[QkvPrimitive::kFrequencies] = inv_freq ? *inv_freq : positions;  // no float32: nothing is turned
    const auto size = static_cast<mx::ShapeElem>(x.shape(-2) * qkv_->heads.width());
    return mx::array(mx::Shape{size}, mx::float32, std::make_shared<QkvPrimitive>(stream, qkv_), std::move(inputs));
  }

  std::shared_ptr<const QkvShape> qkv_;
  std::shared_ptr<const AttendShape> attend_;
  std::vector<mx::array> qkv_inputs_, attend_inputs_, all_;
};

}  // namespace

void bind_attention_half(nanobind::module_& m) {
  using namespace nanobind::literals;
  namespace nb = nanobind;
  nb::class_<AttentionOperation>(m, "AttentionOperation");
  nb::class_<AttentionHalf, AttentionOperation>(m, "AttentionHalf")
      .def(nb::init<const Norm&, const std::vector<Weights>&, const Weights&, int64_t, int64_t, int64_t, float, float,
                    int64_t, float, const std::optional<Norm>&, const std::optional<Norm>&,
                    const std::optional<Norm>&>(),
           "norm"_a, "projections"_a, "o"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a, "rope_scale"_a,
           "window"_a, "softcap"_a, "q_norm"_a.none(), "k_norm"_a.none(), "post"_a.none())
      .def("__call__", &AttentionHalf::operator(), "x"_a, "positions"_a, "inv_freq"_a.none(), "keys"_a, "values"_a,
           "slots"_a, "table"_a, "page_size"_a, "k_bits"_a, "v_bits"_a, "stream"_a = nb::none());
}

}  // namespace umlm
