// The selective scan over a packed row.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "primitives/bind.h"
#include "primitives/segments.h"

namespace umlm {
namespace {

// B or C [tokens, groups, size] in float32, each group filled up with zeros to `padded` values.
class PaddedGroups {
 public:
  PaddedGroups(const mx::array& x, int64_t padded)
      : from_(x), groups_(x.shape(1)), size_(x.shape(2)), padded_(padded), tokens_(x.shape(0)),
        bytes_(std::make_shared<Scratch>(tokens_ * groups_ * padded * sizeof(float))) {}

  // To be called where the kernel runs, when the input is computed.
  const float* fill() const {
    const TokenRows rows = from_.rows();
    auto* to = reinterpret_cast<float*>(bytes_->data());
    const int64_t item = rows.type == Type::f32 ? 4 : 2;
    parallel_for(tokens_ * groups_, 65536 / (padded_ + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i / groups_ * rows.stride + i % groups_ * size_;
        kernels().rows.widen(static_cast<const uint8_t*>(rows.data) + at * item, rows.type, size_, to + i * padded_);
        std::memset(to + i * padded_ + size_, 0, (padded_ - size_) * sizeof(float));
      }
    });
    return to;
  }

 private:
  PackedRow from_;
  int64_t groups_, size_, padded_, tokens_;
  std::shared_ptr<Scratch> bytes_;
};

// inputs: x [T, H, P], dt [T, H], A [H] or [H, N], B and C [T, G, N], states [R, H, P, N], and D [H] if there is one
class SelectiveScanPrimitive : public Recurrence {
 public:
  using Recurrence::Recurrence;

  const char* name() const override { return "UmlmSelectiveScan"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return starts_ == static_cast<const SelectiveScanPrimitive&>(other).starts_;
  }

 protected:
  std::function<void()> work(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const override {
    SelectiveScan a{};
    a.heads = inputs[0].shape(1), a.channels = inputs[0].shape(2);
    a.groups = inputs[3].shape(1), a.size = inputs[3].shape(2);
    a.padded = (a.size + kScanPad - 1) / kScanPad * kScanPad;
    a.per_place = inputs[2].ndim() == 2;
    a.out = outputs[0].data<uint8_t>(), a.new_states = outputs[1].data<float>();
    const bool skips = inputs.size() > 6;
    PackedRow x(inputs[0]);
    RowMajor dt(inputs[1]), decay(inputs[2]), states(inputs[5]), skip(inputs[skips ? 6 : 2]);
    PaddedGroups b(inputs[3], a.padded), c(inputs[4], a.padded);
    return [=, starts = starts_]() mutable {
      a.x = x.rows();
      a.dt = floats(dt), a.a = floats(decay), a.states = floats(states);
      a.skip = skips ? floats(skip) : nullptr;
      a.b = b.fill(), a.c = c.fill();
      run(a, starts);
    };
  }

 private:
  static void run(const SelectiveScan& a, const std::vector<int64_t>& starts) {
    const RecurrenceKernels& k = kernels().recurrence;
    const int64_t requests = starts.size() - 1, blocks = (a.heads * a.channels + kScanRows - 1) / kScanRows;
    const int64_t cost = (starts.back() / (requests + 1) + 1) * kScanRows * a.padded;
    for_each_part(requests, blocks, cost, k.scan_scratch(a), [&](int64_t request, int64_t part, float* scratch) {
      k.selective_scan(a, request, starts[request], starts[request + 1], part * kScanRows, scratch);
    });
  }
};

// The shapes are those of the class above; umlm/kernels/selective_scan.py checks them.
std::pair<mx::array, mx::array> selective_scan(const mx::array& x, const mx::array& dt, const mx::array& a,
                                               const mx::array& b, const mx::array& c,
                                               const std::optional<mx::array>& d, const mx::array& states,
                                               std::vector<int64_t> starts, mx::StreamOrDevice s) {
  auto wide = [&](const mx::array& x) { return mx::astype(x, mx::float32, s); };
  std::vector<mx::array> inputs = {x, wide(dt), wide(a), b, c, states};
  if (d) inputs.push_back(wide(*d));
  auto primitive = std::make_shared<SelectiveScanPrimitive>(mx::to_stream(s), std::move(starts));
  auto out = mx::array::make_arrays({x.shape(), states.shape()}, {x.dtype(), mx::float32}, primitive, inputs);
  return {out[0], out[1]};
}

}  // namespace

void bind_selective_scan(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("selective_scan", &selective_scan, "x"_a, "dt"_a, "a"_a, "b"_a, "c"_a, "d"_a.none(), "states"_a, "starts"_a,
        nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
