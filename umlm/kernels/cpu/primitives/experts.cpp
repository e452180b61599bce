#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <stdexcept>

#include "core/threads.h"
#include "primitives/bind.h"
#include "primitives/quantized.h"

namespace umlm {
namespace {

// Row p of the result is W[ids[p]] times row p / share of x, or its transpose times that row.
class ExpertMatmul : public CpuPrimitive {
 public:
  ExpertMatmul(mx::Stream stream, Coding coding, int64_t columns, int64_t share, bool transposed)
      : CpuPrimitive(stream), coding_(coding), columns_(columns), share_(share), transposed_(transposed) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>& outputs) override;
  const char* name() const override { return "UmlmExpertMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const ExpertMatmul&>(other);
    return coding_ == same.coding_ && columns_ == same.columns_ && share_ == same.share_ &&
           transposed_ == same.transposed_;
  }

 private:
  Coding coding_;
  int64_t columns_, share_;
  bool transposed_;
};

// The rows of a result, sorted by expert.
struct Routing {
  std::vector<int64_t> rows;    // by place
  std::vector<int64_t> starts;  // by expert, its first place; one more at the end
  std::vector<int64_t> active;  // experts that have rows

  Routing(const int32_t* ids, int64_t count, int64_t experts) : rows(count), starts(experts + 1) {
    for (int64_t p = 0; p < count; ++p) {
      if (ids[p] < 0 || ids[p] >= experts) {
        throw std::invalid_argument("expert_matmul: there is no expert " + std::to_string(ids[p]) + " of " +
                                    std::to_string(experts));
      }
      ++starts[ids[p] + 1];
    }
    for (int64_t e = 0; e < experts; ++e) {
      if (starts[e + 1] > 0) active.push_back(e);
      starts[e + 1] += starts[e];
    }
    std::vector<int64_t> next(starts.begin(), starts.end() - 1);
    for (int64_t p = 0; p < count; ++p) rows[next[ids[p]]++] = p;
  }
  int64_t count(int64_t expert) const { return starts[expert + 1] - starts[expert]; }
};

struct Job {
  const StoredMatrix& stored;
  const Routing& routing;
  const uint8_t* x;  // rows in the order of places
  Type type;
  int digits;
  float* sums;  // results in the order of places
};

void multiply(const Job& job) {
  const QuantizedKernels& k = kernels().quantized;
  const int64_t rows = static_cast<int64_t>(job.routing.rows.size());
  const QuantizedMatrix first = job.stored.matrix();
  Scratch scratch(rows * k.prepared_bytes(first));
  const Operand all = k.operand(first, job.x, job.type, job.digits, rows, scratch.data());
  parallel_for(rows, 4, [&](int64_t begin, int64_t end) { k.prepare(first, all, begin, end); });
  // a piece is some rows of one expert's matrix
  constexpr int64_t kPiece = 32;
  const int64_t pieces = (first.rows + kPiece - 1) / kPiece;
  parallel_for(pieces * static_cast<int64_t>(job.routing.active.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t expert = job.routing.active[at / pieces], n = at % pieces * kPiece;
      const int64_t place = job.routing.starts[expert];
      k.quantized_matmul(job.stored.matrix(expert), all.slice(place, job.routing.count(expert)),
                         job.sums + place * first.rows, first.rows, n, std::min(n + kPiece, first.rows));
    }
  });
}

void multiply_transposed(const Job& job) {
  const QuantizedMatrix first = job.stored.matrix();
  Scratch scratch(job.routing.rows.size() * first.rows * sizeof(float));
  auto* values = reinterpret_cast<float*>(scratch.data());
  kernels().rows.widen(job.x, job.type, job.routing.rows.size() * first.rows, values);
  constexpr int64_t kPiece = 256;  // columns; blocks and groups are never cut
  const int64_t pieces = (first.columns + kPiece - 1) / kPiece;
  parallel_for(pieces * static_cast<int64_t>(job.routing.active.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t expert = job.routing.active[at / pieces], column = at % pieces * kPiece;
      const int64_t place = job.routing.starts[expert];
      kernels().quantized.quantized_matmul_t(job.stored.matrix(expert), values + place * first.rows,
                                             job.routing.count(expert), job.sums + place * first.columns, column,
                                             std::min(column + kPiece, first.columns));
    }
  });
}

void ExpertMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(result_memory(out.nbytes()));
  if (out.size() == 0) return;
  const StoredMatrix stored(inputs, 2, coding_, columns_);
  auto* result = out.data<uint8_t>();
  mx::cpu::get_command_encoder(stream()).dispatch(
      [stored, result, type = type_of(out.dtype()), x = RowMajor(inputs[0]), ids = RowMajor(inputs[1]),
       count = int64_t(inputs[1].size()), width = int64_t(inputs[0].shape(-1)), out_width = int64_t(out.shape(-1)),
       experts = int64_t(inputs[2].shape(0)), share = share_, transposed = transposed_,
       digits = num_digits(type_of(out.dtype()), precision_)]() {
        const Routing routing(reinterpret_cast<const int32_t*>(ids.data()), count, experts);
        const int64_t bytes = width * (type == Type::f32 ? 4 : 2), out_bytes = out_width * (type == Type::f32 ? 4 : 2);
        Scratch sorted(count * bytes), sums(count * out_width * sizeof(float));
        const uint8_t* source = x.data();
        for (int64_t place = 0; place < count; ++place) {
          std::memcpy(sorted.data() + place * bytes, source + routing.rows[place] / share * bytes, bytes);
        }
        auto* wide = reinterpret_cast<float*>(sums.data());
        (transposed ? multiply : multiply_transposed)({stored, routing, sorted.data(), type, digits, wide});
        for (int64_t place = 0; place < count; ++place) {
          kernels().rows.narrow(wide + place * out_width, type, out_width, result + routing.rows[place] * out_bytes);
        }
      });
}

mx::array product(const mx::array& x, const mx::array& ids, const std::vector<mx::array>& weights, const Coding& coding,
                  int64_t columns, int64_t share, bool transposed, mx::Stream stream) {
  const int64_t rows = weights[0].shape(-2), width = transposed ? columns : rows;
  if (x.ndim() < 1 || x.shape(-1) != width || x.size() / width * share != ids.size()) {
    throw std::invalid_argument("expert_matmul: x must have a row of " + std::to_string(width) +
                                " values for each expert id, or one for the ids of a token");
  }
  type_of(x.dtype());
  std::vector<mx::array> inputs = {x, mx::astype(ids, mx::int32, stream)};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  auto shape = ids.shape();
  shape.push_back(static_cast<int>(transposed ? rows : columns));
  auto primitive = std::make_shared<ExpertMatmul>(stream, coding, columns, share, transposed);
  return mx::array(shape, x.dtype(), primitive, std::move(inputs));
}

std::vector<mx::array> ExpertMatmul::vjp(const std::vector<mx::array>& primals,
                                         const std::vector<mx::array>& cotangents, const std::vector<int>& argnums,
                                         const std::vector<mx::array>&) {
  if (argnums != std::vector<int>{0}) {
    throw std::invalid_argument("expert_matmul has no gradient with respect to quantized weights");
  }
  const std::vector<mx::array> weights(primals.begin() + 2, primals.end());
  mx::array each = product(cotangents[0], primals[1], weights, coding_, columns_, 1, !transposed_, stream());
  if (share_ > 1) {
    each = mx::sum(mx::reshape(each, {-1, int(share_), each.shape(-1)}, stream()), 1, false, stream());
  }
  return {mx::reshape(each, primals[0].shape(), stream())};
}

// x [..., k or 1, columns], ids [..., k], W [experts, rows, columns] -> [..., k, rows]
mx::array expert_matmul(const mx::array& x, const mx::array& ids, const mx::array& weight,
                        const std::optional<mx::array>& scales, const std::optional<mx::array>& biases,
                        const std::string& layout, int group_size, int64_t columns, mx::StreamOrDevice s) {
  const int64_t share = x.ndim() > 1 && x.shape(-2) == 1 ? ids.shape(-1) : 1;
  return product(x, ids, stored_arrays(weight, scales, biases), coding_of(layout, group_size), columns, share, true,
                 mx::to_stream(s));
}

}  // namespace

void bind_experts(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("expert_matmul", &expert_matmul, "x"_a, "ids"_a, "weight"_a, "scales"_a.none(), "biases"_a.none(), "layout"_a,
        "group_size"_a, "columns"_a, nanobind::kw_only(), "stream"_a = nanobind::none(),
        "Products of rows of x [..., k or 1, columns] with the matrices of a stack [experts, rows, columns] that ids "
        "[..., k] name: [..., k, rows].");
}

}  // namespace umlm
