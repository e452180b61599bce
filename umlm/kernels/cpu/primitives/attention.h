// The work of attention: which pages requests have, and how it is shared among threads.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/threads.h"
#include "primitives/row_major.h"

namespace umlm {

// Rows of queries that share the keys that they pack, and multiply-adds that are worth a thread's wake-up.
inline constexpr int64_t kSharedRows = 144;
inline constexpr int64_t kAttentionWorth = 1 << 16;

// How pages of this dtype and so many bits, 0 for floats, keep rows.
inline Kept kept(const mx::array& pages, int bits) {
  if (bits == 0) return static_cast<Kept>(type_of(pages.dtype()));
  if (bits != 8 && bits != 4) throw std::invalid_argument("quantized pages have 8 or 4 bits");
  if (pages.dtype() != mx::uint8) throw std::invalid_argument("quantized pages are of uint8");
  return bits == 8 ? Kept::q8 : Kept::q4;
}

// The rows of keys or values [.., heads, dims]; `base` is to be set where the kernel runs.
inline KeptRows kept_rows(const mx::array& pages, int bits, int64_t dims) {
  const Kept kind = kept(pages, bits);
  const int64_t bytes = kernels().pages.row_bytes(kind, dims);
  if (pages.shape(-1) * int64_t(pages.itemsize()) != bytes) {
    throw std::invalid_argument("pages: a row of " + std::to_string(dims) + " dims takes " + std::to_string(bytes) +
                                " bytes, not " + std::to_string(pages.shape(-1) * pages.itemsize()));
  }
  return {kind, bytes, nullptr};
}

struct Options {
  float scale, softcap;
  int64_t window, v_head_dim;
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
inline float* thread_scratch(int64_t floats) {
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
    const int64_t grain = std::max<int64_t>(1, kAttentionWorth * int64_t(items_.size()) / (work_ + 1));
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
    const int64_t parts = end - begin, part = rows(a, a.queries) * size(a);
    for (int64_t head = 0; head < a.kv_heads; ++head) splits_.push_back({&a, head, parts, states_ + head * parts * part});
    // the heads of a key lie together, so they follow each other
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t head = 0; head < a.kv_heads; ++head) {
        add({&a, head, 0, a.queries, i, i + 1, states_ + (head * parts + i - begin) * part});
      }
    }
    states_ += a.kv_heads * parts * part;
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


inline void* advance(const void* base, Type type, int64_t count) {
  return const_cast<uint8_t*>(static_cast<const uint8_t*>(base) + count * (type == Type::f32 ? 4 : 2));
}

inline Attention from_query(Attention a, int64_t query) {
  a.q = advance(a.q, a.q_type, query * a.heads * a.head_dim);
  a.out = advance(a.out, a.q_type, query * a.heads * a.v_head_dim);
  return a;
}

inline std::vector<Attention> requests(const Attention& row, const PageTable& table) {
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

}  // namespace umlm
