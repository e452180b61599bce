// Attention of rows to keys, block by block with a running softmax; states of parts of the keys are merged in order.

namespace umlm::UNIT {

inline constexpr float kInfinity = __builtin_inff();

struct Range {
  int64_t begin, end;
};

inline Range both(Range a, Range b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

// Keys that a query sees; where keys have positions of their own, those among which it sees some.
inline Range visible(const Attention& a, int64_t query) {
  if (a.key_positions != nullptr) return {0, a.keys};
  const int64_t position = a.positions[query];
  const int64_t begin = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
  return {begin, position + 1 < a.keys ? position + 1 : a.keys};
}

inline Range visible_to_any(const Attention& a, int64_t first, int64_t queries) {
  Range all = {a.keys, 0};
  for (int64_t query = first; query < first + queries; ++query) {
    const Range range = visible(a, query);
    if (range.begin >= range.end) continue;
    all = {range.begin < all.begin ? range.begin : all.begin, range.end > all.end ? range.end : all.end};
  }
  return all;
}

// Floats that a row of `dims` values of `type` takes as vectors.
inline int64_t lanes_of(int64_t dims, Type type) {
  const int64_t step = type == Type::bf16 ? 2 * kLanes : kLanes;
  return (dims + step - 1) / step * step;
}

// A row's state: weighted sums of values, then the largest score and the sum of weights.
inline int64_t state_size(const Attention& a) { return lanes_of(a.v_head_dim, a.type) + kLanes; }

inline float& largest(const Attention& a, float* state) { return state[lanes_of(a.v_head_dim, a.type)]; }
inline float& weight_sum(const Attention& a, float* state) { return state[lanes_of(a.v_head_dim, a.type) + 1]; }

inline void clear(const Attention& a, int64_t rows, float* states) {
  const int64_t size = state_size(a);
  for (int64_t i = 0; i < rows * size; ++i) states[i] = 0;
  for (int64_t r = 0; r < rows; ++r) largest(a, states + r * size) = -kInfinity;
}

// exp(x - top) where top may be that of no keys at all
inline float weight(float x, float top) { return exp(x - (top == -kInfinity ? 0 : top)); }

inline void merge_row(const Attention& a, float* total, const float* other) {
  const int64_t dims = lanes_of(a.v_head_dim, a.type);
  const float mine = total[dims], theirs = other[dims], top = mine > theirs ? mine : theirs;
  const float keep = weight(mine, top), add = weight(theirs, top);
  for (int64_t i = 0; i < dims; i += kLanes) {
    put(total + i, fused(get(total + i), spread(keep), held(get(other + i) * spread(add))));
  }
  total[dims] = top;
  total[dims + 1] = total[dims + 1] * keep + other[dims + 1] * add;
}

inline void merge(const Attention& a, int64_t rows, float* total, const float* other) {
  for (int64_t r = 0; r < rows; ++r) merge_row(a, total + r * state_size(a), other + r * state_size(a));
}

// Scores outside of `seen`, and of keys that lie after the query or before its window, become -infinity.
inline void mask(const Attention& a, int64_t query, int64_t base, Range seen, float* scores) {
  for (int j = 0; j < kBlockKeys; ++j) {
    scores[j] = j >= seen.begin && j < seen.end ? scores[j] : -kInfinity;
  }
  if (a.key_positions == nullptr) return;
  const int64_t last = a.positions[query], first = a.window > 0 ? last - a.window + 1 : INT64_MIN;
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const int64_t position = a.key_positions[base + j];
    if (position < first || position > last) scores[j] = -kInfinity;
  }
}

// Turn a block's scores into weights, and return what the sums so far are to be multiplied with.
[[gnu::noinline]] inline float soften(const Attention& a, int64_t query, int64_t base, Range seen, float* scores,
                                      float* top, float* sum) {
  if (a.softcap > 0) {
    for (int j = 0; j < kBlockKeys; ++j) scores[j] = a.softcap * tanh(scores[j] / a.softcap);
  }
  mask(a, query, base, seen, scores);
  Lanes most = get(scores);
  for (int j = kLanes; j < kBlockKeys; j += kLanes) {
    const Lanes next = get(scores + j);
    most = next > most ? next : most;
  }
  float next = *top;
  for (int i = 0; i < kLanes; ++i) next = most[i] > next ? most[i] : next;
  const float zero = next == -kInfinity ? 0 : next, decay = exp(*top - zero);
  for (int j = 0; j < kBlockKeys; ++j) scores[j] = exp(scores[j] - zero);
  Lanes total = get(scores);
  for (int j = kLanes; j < kBlockKeys; j += kLanes) total = held(total + get(scores + j));
  float all = total[0];
  for (int i = 1; i < kLanes; ++i) all += total[i];
  *top = next;
  *sum = *sum * decay + all;
  return decay;
}

inline int64_t slot(const Attention& a, int64_t key) {
  return a.pages == nullptr ? key : a.pages[key / a.page_size] * a.page_size + key % a.page_size;
}

// What attend works with: one kv head, rows of some queries, all in scratch.
template <Type kType>
struct Work {
  const Attention& a;
  int64_t head, first, rows, group;
  int64_t q_stride, size;
  bool many;
  float *q, *states, *scores, *packed, *widened;

  Work(const Attention& a, int64_t head, int64_t first, int64_t queries, float* scratch)
      : a(a), head(head), first(first), group(a.heads / a.kv_heads) {
    rows = queries * group;
    many = rows >= kManyRows;
    q_stride = lanes_of(a.head_dim, kType);
    size = state_size(a);
    q = scratch;
    states = q + rows * q_stride;
    scores = states + rows * size;
    packed = scores + kRowTile * kBlockKeys;
    widened = packed + kBlockKeys * q_stride;
  }

  int64_t query(int64_t row) const { return first + row / group; }

  // q times scale, in the order in which the products meet it; a head's values go through `states`.
  void load_queries() {
    const int64_t vectors = q_stride / kLanes;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = query(r) * a.heads + head * group + r % group;
      float *row = q + r * q_stride, *values = packed;
      widen(element(a.q, a.q_type, at * a.head_dim), a.q_type, a.head_dim, values);
      for (int64_t i = 0; i < q_stride; ++i) row[i] = 0;
      for (int64_t d = 0; d < a.head_dim; ++d) {
        const int64_t place = Step<kType>::place(d);
        row[many ? place % kLanes * vectors + place / kLanes : place] = values[d] * a.scale;
      }
    }
  }

  // Where the rows of a block's keys or values lie; the nearest of `range` stands in for those outside.
  void find_rows(const void* pages, int64_t dims, int64_t base, Range range, const void** found) const {
    for (int64_t j = 0; j < kBlockKeys; ++j) {
      const int64_t inside = j < range.begin ? range.begin : j >= range.end ? range.end - 1 : j;
      found[j] = element(pages, kType, (slot(a, base + inside) * a.kv_heads + head) * dims);
    }
  }

  void block(int64_t base, Range range) {
    const void *keys[kBlockKeys], *values[kBlockKeys];
    find_rows(a.k, a.head_dim, base, range, keys);
    find_rows(a.v, a.v_head_dim, base, range, values);
    if (many) {
      pack_keys<kType>(keys, a.head_dim, range.begin, range.end, packed);
      if (kType != Type::f32) widen_values(range, values);
    }
    for (int64_t row = 0; row < rows; row += kRowTile) {
      tile(base, row, rows - row < kRowTile ? rows - row : kRowTile, keys, values);
    }
  }

  void widen_values(Range range, const void** values) {
    const int64_t width = size - kLanes;
    constexpr int kVectors = Step<kType>::kVectors;
    for (int64_t j = range.begin; j < range.end; ++j) {
      float* to = widened + j * width;
      for (int64_t step = 0; step < width / Step<kType>::kValues; ++step) {
        Lanes lanes[kVectors];
        Step<kType>::template load<false>(values[j], step, a.v_head_dim, lanes);
        for (int i = 0; i < kVectors; ++i) put(to + (step * kVectors + i) * kLanes, lanes[i]);
      }
      values[j] = to;
    }
  }

  Range seen(int64_t base, int64_t row) const {
    const Range range = both(visible(a, query(row)), {base, base + kBlockKeys});
    return {range.begin - base, range.end - base};
  }

  // Rows of neighbouring queries, with the keys of the block that any of them sees.
  void tile(int64_t base, int64_t row, int64_t count, const void* const* keys, const void* const* values) {
    Range any = {kBlockKeys, 0};
    for (int64_t r = row; r < row + count; ++r) {
      const Range range = seen(base, r);
      if (range.begin >= range.end) continue;
      any = {range.begin < any.begin ? range.begin : any.begin, range.end > any.end ? range.end : any.end};
    }
    if (any.begin >= any.end) return;
    rows_as<kRowTile>(count, [&](auto rows) { score<rows>(row, keys, any); });
    float decay[kRowTile];
    for (int64_t r = 0; r < count; ++r) {
      float* state = states + (row + r) * size;
      decay[r] = soften(a, query(row + r), base, seen(base, row + r), scores + r * kBlockKeys, &largest(a, state),
                        &weight_sum(a, state));
    }
    rows_as<kRowTile>(count, [&](auto rows) { add<rows>(row, decay, values, any); });
  }

  template <int kMost, typename F>
  static void rows_as(int64_t count, F&& f) {
    if constexpr (kMost > 1) {
      if (count < kMost) return rows_as<kMost - 1>(count, f);
    }
    f(Number<kMost>{});
  }

  template <int kRows>
  void score(int64_t row, const void* const* keys, Range range) {
    const float* rows = q + row * q_stride;
    if (many) {
      scores_of_many<kRows>(rows, q_stride, packed, q_stride / kLanes, range.begin, range.end, scores);
    } else if (a.head_dim % Step<kType>::kValues == 0) {
      scores_of_few<kType, kRows, true>(rows, q_stride, keys, a.head_dim, range.begin, range.end, scores);
    } else {
      scores_of_few<kType, kRows, false>(rows, q_stride, keys, a.head_dim, range.begin, range.end, scores);
    }
  }

  template <int kRows>
  void add(int64_t row, const float* decay, const void* const* values, Range range) {
    float* sums = states + row * size;
    if (many && kType != Type::f32) {
      add_all<Type::f32, kRows, true>(decay, values, size - kLanes, range, sums);
    } else if (a.v_head_dim % Step<kType>::kValues == 0) {
      add_all<kType, kRows, true>(decay, values, a.v_head_dim, range, sums);
    } else {
      add_all<kType, kRows, false>(decay, values, a.v_head_dim, range, sums);
    }
  }

  template <Type kAs, int kRows, bool kWhole>
  void add_all(const float* decay, const void* const* values, int64_t dims, Range range, float* sums) {
    constexpr int kWide = 4 / Step<kAs>::kVectors;
    const int64_t steps = Step<kAs>::count(dims);
    int64_t step = 0;
    for (; step + kWide <= steps; step += kWide) {
      add_weighted<kAs, kRows, kWide, kWhole>(scores, decay, values, dims, step, range.begin, range.end, sums, size);
    }
    for (; step < steps; ++step) {
      add_weighted<kAs, kRows, 1, kWhole>(scores, decay, values, dims, step, range.begin, range.end, sums, size);
    }
  }

  template <int kValue>
  struct Number {
    constexpr operator int() const { return kValue; }
  };
};

template <Type kType>
void attend_as(const Attention& a, int64_t head, int64_t first, int64_t queries, int64_t begin, int64_t end,
               float* states, float* scratch) {
  Work<kType> work(a, head, first, queries, scratch);
  work.load_queries();
  clear(a, work.rows, states);
  const Range all = visible_to_any(a, first, queries);
  for (int64_t part = begin; part < end; ++part) {
    const Range keys = both(all, {part * kPartKeys, (part + 1) * kPartKeys});
    if (keys.begin >= keys.end) continue;
    clear(a, work.rows, work.states);
    for (int64_t base = keys.begin / kBlockKeys * kBlockKeys; base < keys.end; base += kBlockKeys) {
      const Range block = both(keys, {base, base + kBlockKeys});
      work.block(base, {block.begin - base, block.end - base});
    }
    merge(a, work.rows, states, work.states);
  }
}

inline int64_t scratch_size(const Attention& a, int64_t queries) {
  const int64_t rows = queries * (a.heads / a.kv_heads), q = lanes_of(a.head_dim, a.type);
  return rows * (q + state_size(a)) + kRowTile * kBlockKeys + kBlockKeys * (q + state_size(a));
}

inline void attend(const Attention& a, int64_t head, int64_t first, int64_t queries, int64_t begin, int64_t end,
                   float* states, float* scratch) {
  switch (a.type) {
    case Type::f32: return attend_as<Type::f32>(a, head, first, queries, begin, end, states, scratch);
    case Type::f16: return attend_as<Type::f16>(a, head, first, queries, begin, end, states, scratch);
    case Type::bf16: return attend_as<Type::bf16>(a, head, first, queries, begin, end, states, scratch);
  }
}

inline int64_t place_of(Type type, int64_t d) { return type == Type::bf16 ? Step<Type::bf16>::place(d) : d; }

inline void finish(const Attention& a, int64_t head, int64_t first, int64_t queries, const float* states) {
  const int64_t group = a.heads / a.kv_heads, dims = lanes_of(a.v_head_dim, a.type), size = state_size(a);
  constexpr int64_t kPart = 256;
  float values[kPart];
  for (int64_t r = 0; r < queries * group; ++r) {
    const float* state = states + r * size;
    const int64_t q_head = head * group + r % group;
    float factor = 1, total = state[dims + 1];
    if (a.sinks != nullptr) {
      const float sink = a.sinks[q_head], top = sink > state[dims] ? sink : state[dims];
      factor = weight(state[dims], top);
      total = total * factor + weight(sink, top);
    }
    factor /= total;
    const int64_t at = ((first + r / group) * a.heads + q_head) * a.v_head_dim;
    for (int64_t d = 0; d < a.v_head_dim; d += kPart) {
      const int64_t count = a.v_head_dim - d < kPart ? a.v_head_dim - d : kPart;
      for (int64_t i = 0; i < count; ++i) values[i] = state[place_of(a.type, d + i)] * factor;
      narrow(values, a.q_type, count, const_cast<uint8_t*>(element(a.out, a.q_type, at + d)));
    }
  }
}

inline constexpr AttentionKernels attention_kernels = {state_size, scratch_size, attend, merge, finish};

}  // namespace umlm::UNIT
