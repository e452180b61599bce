// Attention to keys in pages or in one array.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "core/threads.h"
#include "primitives/bind.h"
#include "primitives/row_major.h"

namespace umlm {
namespace {

// Rows of queries that share the keys that they pack, and multiply-adds that are worth a thread's wake-up.
constexpr int64_t kSharedRows = 144;
constexpr int64_t kWorth = 1 << 16;

struct Options {
  float scale, softcap;
  int64_t window;
};

// Which pages the requests of a packed row have: made once, for all layers.
struct PageTable {
  std::vector<int32_t> pages;
  std::vector<int64_t> first;  // of each request, in pages
  std::vector<int64_t> starts, contexts;

  PageTable(const std::vector<std::vector<int32_t>>& table, std::vector<int64_t> starts, std::vector<int64_t> contexts)
      : starts(std::move(starts)), contexts(std::move(contexts)) {
    if (this->starts.size() != table.size() + 1 || this->contexts.size() != table.size()) {
      throw std::invalid_argument("page table: starts needs one more entry than there are requests, contexts as many");
    }
    for (const auto& request : table) {
      first.push_back(pages.size());
      pages.insert(pages.end(), request.begin(), request.end());
    }
    first.push_back(pages.size());
  }

  void check(int64_t tokens, int64_t slots, int64_t page_size) const {
    if (starts.back() != tokens) throw std::invalid_argument("page table: starts does not end at the row's length");
    for (size_t r = 0; r < contexts.size(); ++r) {
      if ((first[r + 1] - first[r]) * page_size < contexts[r]) {
        throw std::invalid_argument("page table: a request has fewer pages than its context needs");
      }
    }
    for (int32_t page : pages) {
      if (page < 0 || (page + 1) * page_size > slots) throw std::invalid_argument("page table: no such page");
    }
  }
};

// Rows of one kv head: of some queries over all parts of the keys, or of all queries over one part.
struct Item {
  const Attention* a;
  int64_t head, query, queries, begin, end;
  int64_t states;  // where its states begin in the plan's memory; -1: finished at once
};

// Rows whose states over the parts of the keys are still to be merged.
struct Split {
  const Attention* a;
  int64_t head, parts, states;
};

// Memory of a thread that grows to what its largest piece of work needs.
float* thread_scratch(int64_t floats) {
  thread_local std::vector<float> memory;
  if (memory.size() < static_cast<size_t>(floats)) memory.resize(floats);
  return memory.data();
}

class Plan {
 public:
  explicit Plan(const std::vector<Attention>& sequences) {
    for (const Attention& a : sequences) {
      if (a.queries == 0 || a.keys == 0) continue;
      const auto [begin, end] = parts(a);
      const int64_t group = a.heads / a.kv_heads, shared = std::max<int64_t>(1, kSharedRows / group);
      if (a.queries * group < kManyRows && end - begin > 1) {
        split(a, begin, end);
        continue;
      }
      for (int64_t head = 0; head < a.kv_heads; ++head) {
        // later queries see more keys: the longest first
        for (int64_t query = (a.queries - 1) / shared * shared; query >= 0; query -= shared) {
          add({&a, head, query, std::min(shared, a.queries - query), begin, end, -1});
        }
      }
    }
  }

  void run() {
    std::vector<float> memory(states_);
    const int64_t grain = std::max<int64_t>(1, kWorth * int64_t(items_.size()) / (work_ + 1));
    parallel_for(items_.size(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) compute(items_[i], memory.data());
    });
    for (const Split& split : splits_) join(split, memory.data() + split.states);
  }

 private:
  // The parts that hold keys which queries see.
  static std::pair<int64_t, int64_t> parts(const Attention& a) {
    int64_t first = 0, last = a.keys;
    if (a.key_positions == nullptr) {
      const auto [low, high] = std::minmax_element(a.positions, a.positions + a.queries);
      first = a.window > 0 ? std::max<int64_t>(0, *low - a.window + 1) : 0;
      last = std::min<int64_t>(a.keys, *high + 1);
    }
    return {first / kPartKeys, std::max<int64_t>(first / kPartKeys + 1, (last + kPartKeys - 1) / kPartKeys)};
  }

  static int64_t rows(const Attention& a, int64_t queries) { return queries * (a.heads / a.kv_heads); }
  static int64_t size(const Attention& a) { return kernels().attention.state_size(a); }

  void add(const Item& item) {
    work_ += rows(*item.a, item.queries) * (item.end - item.begin) * std::min(kPartKeys, item.a->keys) *
             (item.a->head_dim + item.a->v_head_dim);
    items_.push_back(item);
  }

  void split(const Attention& a, int64_t begin, int64_t end) {
    const int64_t part = rows(a, a.queries) * size(a);
    for (int64_t head = 0; head < a.kv_heads; ++head) {
      splits_.push_back({&a, head, end - begin, states_});
      for (int64_t i = begin; i < end; ++i, states_ += part) {
        add({&a, head, 0, a.queries, i, i + 1, states_});
      }
    }
  }

  static void compute(const Item& item, float* states) {
    const AttentionKernels& k = kernels().attention;
    const Attention& a = *item.a;
    const bool whole = item.states < 0;
    const int64_t own = whole ? rows(a, item.queries) * size(a) : 0;
    float* memory = thread_scratch(own + k.scratch_size(a, item.queries));
    float* result = whole ? memory : states + item.states;
    k.attend(a, item.head, item.query, item.queries, item.begin, item.end, result, memory + own);
    if (whole) k.finish(a, item.head, item.query, item.queries, result, memory + own);
  }

  static void join(const Split& split, float* states) {
    const AttentionKernels& k = kernels().attention;
    const Attention& a = *split.a;
    const int64_t all = rows(a, a.queries);
    for (int64_t i = 1; i < split.parts; ++i) k.merge(a, all, states, states + i * all * size(a));
    k.finish(a, split.head, 0, a.queries, states, thread_scratch(k.scratch_size(a, a.queries)));
  }

  std::vector<Item> items_;
  std::vector<Split> splits_;
  int64_t states_ = 0, work_ = 0;
};

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
  AttentionPrimitive(mx::Stream stream, std::shared_ptr<PageTable> table, int64_t page_size, Options options)
      : CpuPrimitive(stream), table_(std::move(table)), page_size_(page_size), options_(options) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    std::vector<RowMajor> rows(inputs.begin(), inputs.end());
    Attention a = shapes(inputs);
    a.out = out.data<uint8_t>();
    const int64_t batch = inputs[0].shape(0);
    mx::cpu::get_command_encoder(stream()).dispatch([=, table = table_]() mutable {
      a.q = rows[0].data(), a.k = rows[1].data(), a.v = rows[2].data();
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
    const mx::array &q = inputs[0], &k = inputs[1], &v = inputs[2];
    Attention a{};
    a.queries = q.shape(1), a.heads = q.shape(2), a.head_dim = q.shape(3);
    a.keys = k.shape(-3), a.kv_heads = k.shape(-2), a.v_head_dim = v.shape(-1);
    a.q_type = type_of(q.dtype()), a.type = type_of(k.dtype());
    a.page_size = page_size_;
    a.window = options_.window, a.scale = options_.scale, a.softcap = options_.softcap;
    return a;
  }

  static void* advance(const void* base, Type type, int64_t count) {
    return const_cast<uint8_t*>(static_cast<const uint8_t*>(base) + count * (type == Type::f32 ? 4 : 2));
  }

  static Attention from_query(Attention a, int64_t query) {
    a.q = advance(a.q, a.q_type, query * a.heads * a.head_dim);
    a.out = advance(a.out, a.q_type, query * a.heads * a.v_head_dim);
    return a;
  }

  static std::vector<Attention> requests(const Attention& row, const PageTable& table) {
    std::vector<Attention> all;
    for (size_t r = 0; r < table.contexts.size(); ++r) {
      Attention a = from_query(row, table.starts[r]);
      a.queries = table.starts[r + 1] - table.starts[r], a.keys = table.contexts[r];
      a.positions += table.starts[r];
      a.pages = table.pages.data() + table.first[r];
      all.push_back(a);
    }
    return all;
  }

  static std::vector<Attention> sequences(const Attention& first, int64_t batch) {
    std::vector<Attention> all;
    for (int64_t b = 0; b < batch; ++b) {
      Attention a = from_query(first, b * first.queries);
      a.k = advance(a.k, a.type, b * a.keys * a.kv_heads * a.head_dim);
      a.v = advance(a.v, a.type, b * a.keys * a.kv_heads * a.v_head_dim);
      all.push_back(a);
    }
    return all;
  }

  std::shared_ptr<PageTable> table_;
  int64_t page_size_;
  Options options_;
};

mx::array attend(const mx::array& q, std::vector<mx::array> inputs, const std::optional<mx::array>& sinks,
                 std::shared_ptr<PageTable> table, int64_t page_size, Options options, mx::StreamOrDevice s) {
  auto shape = q.shape();
  shape.back() = inputs[2].shape(-1);
  if (sinks) inputs.push_back(mx::astype(*sinks, mx::float32, s));
  auto primitive = std::make_shared<AttentionPrimitive>(mx::to_stream(s), std::move(table), page_size, options);
  return mx::array(shape, q.dtype(), primitive, std::move(inputs));
}

mx::array paged_attention(const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& positions,
                          std::shared_ptr<PageTable> table, int64_t page_size, float scale, int64_t window,
                          float softcap, const std::optional<mx::array>& sinks, mx::StreamOrDevice s) {
  table->check(q.shape(1), k.shape(0), page_size);
  return attend(q, {q, k, v, mx::astype(positions, mx::int32, s)}, sinks, table, page_size, {scale, softcap, window},
                s);
}

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& positions,
                    const mx::array& key_positions, float scale, int64_t window, float softcap,
                    const std::optional<mx::array>& sinks, mx::StreamOrDevice s) {
  return attend(q, {q, k, v, mx::astype(positions, mx::int32, s), mx::astype(key_positions, mx::int32, s)}, sinks,
                nullptr, 1, {scale, softcap, window}, s);
}

}  // namespace

void bind_attention(nanobind::module_& m) {
  using namespace nanobind::literals;
  nanobind::class_<PageTable>(m, "PageTable", "The pages of the requests of a packed row, for all layers.")
      .def(nanobind::init<const std::vector<std::vector<int32_t>>&, std::vector<int64_t>, std::vector<int64_t>>(),
           "pages"_a, "starts"_a, "contexts"_a);
  m.def("paged_attention", &paged_attention, "q"_a, "k_pages"_a, "v_pages"_a, "positions"_a, "table"_a, "page_size"_a,
        "scale"_a, "window"_a = 0, "softcap"_a = 0.0f, "sinks"_a.none() = nanobind::none(), nanobind::kw_only(),
        "stream"_a = nanobind::none());
  m.def("attention", &attention, "q"_a, "k"_a, "v"_a, "q_positions"_a, "k_positions"_a, "scale"_a, "window"_a = 0,
        "softcap"_a = 0.0f, "sinks"_a.none() = nanobind::none(), nanobind::kw_only(), "stream"_a = nanobind::none());
}

}  // namespace umlm
