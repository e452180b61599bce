// Rows written into pages, in place where it can be.
//
// A primitive of its own for each array of pages: MLX gives an input's memory to an output only where that output is
// the only one to ask for it.
#pragma once

#include <vector>

#include "core/threads.h"
#include "primitives/attention.h"

namespace umlm {

// Values that are worth a thread's wake-up.
inline constexpr int64_t kWriteWorth = 16384;

// Rows [count, heads, dims] of a type into the slots of pages of this kind.
inline void write_into(void* pages, Kept kind, const void* rows, Type type, int64_t count, int64_t heads, int64_t dims,
                       const int32_t* slots) {
  parallel_for(count, kWriteWorth / (heads * dims + 1) + 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(heads * dims);
    kernels().pages.write_rows(advance(rows, type, begin * heads * dims), type, end - begin, heads, dims, slots + begin,
                               kind, static_cast<uint8_t*>(pages), scratch.data());
  });
}

// pages, slots int32 [T] that differ, rows -> the pages with `heads` rows of `dims` values in each slot: those from
// the element `first` of the rows on.
class WritePages : public CpuPrimitive {
 public:
  WritePages(mx::Stream stream, KeptRows kept, int64_t heads, int64_t dims, int64_t first)
      : CpuPrimitive(stream), kept_(kept), heads_(heads), dims_(dims), first_(first) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const mx::array &pages = inputs[0], &values = inputs[2];
    RowMajor old(pages), slots(inputs[1]), rows(values);
    const Type type = type_of(values.dtype());
    const int64_t count = inputs[1].size();
    allocate_like(pages, out);
    auto* result = out.data<uint8_t>();
    const bool in_place = result == pages.data<uint8_t>();
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, kind = kept_.kind, heads = heads_, dims = dims_, first = first_, bytes = pages.nbytes()]() {
          if (!in_place) std::memcpy(result, old.data(), bytes);
          write_into(result, kind, advance(rows.data(), type, first), type, count, heads, dims,
                     reinterpret_cast<const int32_t*>(slots.data()));
        });
  }

  const char* name() const override { return "UmlmWritePages"; }

 private:
  KeptRows kept_;
  int64_t heads_, dims_, first_;
};

// Let `pages` be the pages with the rows written.
inline void write_rows(mx::array& pages, const mx::array& slots, const mx::array& rows, KeptRows kept, int64_t heads,
                       int64_t dims, int64_t first, mx::Stream stream) {
  auto primitive = std::make_shared<WritePages>(stream, kept, heads, dims, first);
  pages.overwrite_descriptor(mx::array(pages.shape(), pages.dtype(), std::move(primitive), {pages, slots, rows}));
}

}  // namespace umlm
