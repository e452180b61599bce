// Attention of rows to keys, block by block with a running softmax; states of parts of the keys are merged in order.

namespace umlm::UNIT {

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

// In what keys and values meet the products: as they lie, or float32 where they are quantized or differ.
inline Type product_type(const Attention& a) {
  return a.k.kind == a.v.kind && a.k.kind < Kept::q8 ? static_cast<Type>(a.k.kind) : Type::f32;
}

inline int64_t sum_size(const Attention& a) { return lanes_of(a.v_head_dim, product_type(a)); }

// A row's state: weighted sums of values, then the largest score and the sum of weights.
inline int64_t state_size(const Attention& a) { return sum_size(a) + kLanes; }

inline float& largest(const Attention& a, float* state) { return state[sum_size(a)]; }
inline void clear(const Attention& a, int64_t rows, float* states) {
  const int64_t size = state_size(a);
  for (int64_t i = 0; i < rows * size; ++i) states[i] = 0;
  for (int64_t r = 0; r < rows; ++r) largest(a, states + r * size) = -kInfinity;
}

// exp(x - top), and 0 where x is that of no keys at all
inline float weight(float x, float top) { return x < top - 86.0f || x == -kInfinity ? 0 : exp(x - top); }

inline void merge_row(const Attention& a, float* total, const float* other) {
  const int64_t dims = sum_size(a);
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

// The next place that is a cache line's first.
inline float* aligned(float* at) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(at) + kCacheLine - 1) / kCacheLine * kCacheLine);
}

// Floats that a block of opened rows takes.
inline int64_t tile_size(const Attention& a, const KeptRows& rows, int64_t dims) {
  return rows.kind == static_cast<Kept>(product_type(a)) ? 0 : kBlockKeys * whole_codes(dims);
}

inline constexpr int64_t kRangeFloats = sizeof(Range) / sizeof(float);

// Most bytes that the keys, or the values, of all heads of a part may take to be asked for together.
inline constexpr int64_t kPartBytes = 256 << 10;

// What attend works with: one kv head, rows of some queries, all in scratch.
template <Type kType>
struct Work {
  const Attention& a;
  int64_t head, first, rows, group;
  int64_t q_stride, size;
  bool many;
  float *q, *states, *scores, *decays, *packed, *widened, *key_tile, *value_tile;
  Range* ranges;  // of keys that a row's query sees

  Work(const Attention& a, int64_t head, int64_t first, int64_t queries, float* scratch)
      : a(a), head(head), first(first), group(a.heads / a.kv_heads) {
    rows = queries * group;
    many = rows >= kManyRows;
    q_stride = lanes_of(a.head_dim, kType);
    size = state_size(a);
    ranges = reinterpret_cast<Range*>(scratch);
    q = scratch + rows * kRangeFloats;
    states = q + rows * q_stride;
    scores = states + rows * size;
    decays = scores + rows * kBlockKeys;
    packed = decays + rows + kRowTile;
    widened = packed + kBlockKeys * q_stride;
    key_tile = aligned(widened + kBlockKeys * size);
    value_tile = key_tile + tile_size(a, a.k, a.head_dim);
    for (int64_t r = 0; r < rows; ++r) ranges[r] = visible(a, query(r));
  }

  int64_t query(int64_t row) const { return first + row / group; }

  // q times scale, in the order in which the products meet it; `packed` is free until then.
  void load_queries() {
    const int64_t vectors = q_stride / kLanes;
    float* values = packed;
    for (int64_t d = 0; d < q_stride; ++d) values[d] = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = query(r) * a.heads + head * group + r % group;
      widen(element(a.q, a.q_type, at * a.head_dim), a.q_type, a.head_dim, values);
      float* to = q + r * q_stride;
      for (int64_t d = 0; d < q_stride; d += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const int64_t place = Step<kType>::place(d + lane);
          to[many ? place % kLanes * vectors + place / kLanes : place] = values[d + lane] * a.scale;
        }
      }
    }
  }

  // Where the rows of the keys or values `range` of a part lie.
  void find_rows(Range range, const KeptRows& from, const void** rows) const {
    const int64_t page_size = a.pages == nullptr ? a.keys : a.page_size, stride = a.kv_heads * from.bytes;
    const char* row = nullptr;
    for (int64_t key = range.begin, left = 0; key < range.end; ++key, --left, row += stride) {
      if (left == 0) {
        const int64_t page = key / page_size, slot = (a.pages == nullptr ? 0 : a.pages[page]) * page_size;
        left = (page + 1) * page_size - key;
        row = static_cast<const char*>(from.base) + (slot + key % page_size) * stride + head * from.bytes;
      }
      rows[key % kPartKeys] = row;
    }
  }

  // The nearest keys of `range` stand in for those outside that make up fours.
  static void fill_fours(Range range, const void** keys) {
    for (int64_t j = range.begin / 4 * 4; j < range.begin; ++j) keys[j] = keys[range.begin];
    for (int64_t j = range.end; j % 4 != 0; ++j) keys[j] = keys[range.end - 1];
  }

  // Make rows of the block ready for the products. Rows of a head lie apart, where the processor does not look ahead;
  // of those that are opened, which takes time, the next block's are fetched meanwhile.
  void ready(Range range, int64_t known, const KeptRows& from, int64_t dims, float* tile, const void** rows) const {
    if (from.kind != static_cast<Kept>(kType)) return open_rows(from, dims, range.begin, range.end, known, tile, rows);
    fetch(from, rows + kBlockKeys, range.begin, range.end < known - kBlockKeys ? range.end : known - kBlockKeys);
  }

  // Ask for rows [begin, end): by the first head those of all heads, which lie together and come next, where they stay
  // in the second cache until then.
  void fetch(const KeptRows& from, const void* const* rows, int64_t begin, int64_t end) const {
    const int64_t all = a.kv_heads * from.bytes;
    const int64_t bytes = head == 0 && all * kPartKeys <= kPartBytes ? all : from.bytes;
    for (int64_t j = begin; j < end; ++j) prefetch(rows[j], bytes);
  }

  void part(Range range) {
    const void *keys[kPartKeys], *values[kPartKeys];
    find_rows(range, a.k, keys);
    find_rows(range, a.v, values);
    const int64_t first = range.begin % kPartKeys, count = range.end - range.begin;
    fetch(a.k, keys, first, first + (count < kBlockKeys ? count : kBlockKeys));
    fetch(a.v, values, first, first + (count < kBlockKeys ? count : kBlockKeys));
    for (int64_t base = range.begin / kBlockKeys * kBlockKeys; base < range.end; base += kBlockKeys) {
      const Range own = both(range, {base, base + kBlockKeys});
      block(base, {own.begin - base, own.end - base}, range.end - base, keys + base % kPartKeys,
            values + base % kPartKeys);
    }
  }

  // keys and values: the rows of the block, and of the part's later ones, `known` in all.
  void block(int64_t base, Range range, int64_t known, const void** keys, const void** values) {
    ready(range, known, a.k, a.head_dim, key_tile, keys);
    ready(range, known, a.v, a.v_head_dim, value_tile, values);
    fill_fours(range, keys);
    if (many) {
      pack_keys<kType>(keys, a.head_dim, range.begin, range.end, packed);
      if (widens()) widen_values(range, values);
    }
    // phase by phase, so that the keys and then the values of a pass over all rows stay in the first cache
    const int64_t width = many ? kPanelKeys : kBlockKeys;
    for (int64_t j = range.begin / width * width; j < range.end; j += width) {
      for_tiles(base, [&](auto count, int64_t row, Range any) { score<count>(row, keys, both(any, {j, j + width})); });
    }
    for_tiles(base, [&](auto count, int64_t row, Range) { weigh<count>(base, row); });
    for (int64_t step = 0; step < value_steps(); step += kWideSteps) {
      for_tiles(base, [&](auto count, int64_t row, Range any) { add<count>(row, values, step, any); });
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
    const Range range = both(ranges[row], {base, base + kBlockKeys});
    return {range.begin - base, range.end - base};
  }

  // Call f(count, row, range) for tiles of rows, with the keys of the block that any of a tile's rows sees.
  template <typename F>
  void for_tiles(int64_t base, F&& f) const {
    for (int64_t row = 0; row < rows; row += kRowTile) {
      const int64_t count = rows - row < kRowTile ? rows - row : kRowTile;
      Range any = {kBlockKeys, 0};
      for (int64_t r = row; r < row + count; ++r) {
        const Range range = seen(base, r);
        if (range.begin >= range.end) continue;
        any = {range.begin < any.begin ? range.begin : any.begin, range.end > any.end ? range.end : any.end};
      }
      any = both(any, {0, kBlockKeys});
      if (any.begin < any.end) rows_as<kRowTile>(count, [&](auto rows) { f(rows, row, any); });
    }
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
    const float* from = q + row * q_stride;
    float* to = scores + row * kBlockKeys;
    if (many) {
      scores_of_many<kRows>(from, q_stride, packed, q_stride / kLanes, range.begin, range.end, to);
    } else if (a.head_dim % Step<kType>::kValues == 0) {
      scores_of_few<kType, kRows, true>(from, q_stride, keys, a.head_dim, range.begin, range.end, to);
    } else {
      scores_of_few<kType, kRows, false>(from, q_stride, keys, a.head_dim, range.begin, range.end, to);
    }
  }

  // Scores become weights.
  template <int kRows>
  void weigh(int64_t base, int64_t row) {
    for (int64_t r = row; r < row + kRows; ++r) {
      float* own = scores + r * kBlockKeys;
      if (a.softcap > 0) cap(a.softcap, own);
      mask(seen(base, r), own);
      if (a.key_positions != nullptr) mask_by_position(a, query(r), base, seen(base, r), own);
    }
    soften<kRows>(scores + row * kBlockKeys, states + row * size + size - kLanes, size, decays + row);
  }

  bool widens() const { return many && kType != Type::f32; }
  int64_t value_steps() const { return widens() ? (size - kLanes) / kLanes : Step<kType>::count(a.v_head_dim); }
  static constexpr int64_t kWideSteps = 4;

  template <int kRows>
  void add(int64_t row, const void* const* values, int64_t step, Range range) {
    if (widens()) {
      add_steps<Type::f32, kRows, true>(row, values, size - kLanes, step, range);
    } else if (a.v_head_dim % Step<kType>::kValues == 0) {
      add_steps<kType, kRows, true>(row, values, a.v_head_dim, step, range);
    } else {
      add_steps<kType, kRows, false>(row, values, a.v_head_dim, step, range);
    }
  }

  // The next kWideSteps steps of dims, in as many registers as there are.
  template <Type kAs, int kRows, bool kWhole>
  void add_steps(int64_t row, const void* const* values, int64_t dims, int64_t step, Range range) {
    constexpr int kWide = kWideSteps / Step<kAs>::kVectors;
    const float *weights = scores + row * kBlockKeys, *decay = decays + row;
    float* sums = states + row * size;
    const int64_t end = step + kWideSteps < value_steps() ? step + kWideSteps : value_steps();
    for (; step + kWide <= end; step += kWide) {
      add_weighted<kAs, kRows, kWide, kWhole>(weights, decay, values, dims, step, range.begin, range.end, sums, size);
    }
    for (; step < end; ++step) {
      add_weighted<kAs, kRows, 1, kWhole>(weights, decay, values, dims, step, range.begin, range.end, sums, size);
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
    work.part(keys);
    merge(a, work.rows, states, work.states);
  }
}

inline int64_t scratch_size(const Attention& a, int64_t queries) {
  const int64_t rows = queries * (a.heads / a.kv_heads), q = lanes_of(a.head_dim, product_type(a));
  return rows * (kRangeFloats + q + state_size(a) + kBlockKeys + 1) + kRowTile + kBlockKeys * (q + state_size(a)) +
         kCacheLine / sizeof(float) + tile_size(a, a.k, a.head_dim) + tile_size(a, a.v, a.v_head_dim);
}

inline void attend(const Attention& a, int64_t head, int64_t first, int64_t queries, int64_t begin, int64_t end,
                   float* states, float* scratch) {
  switch (product_type(a)) {
    case Type::f32: return attend_as<Type::f32>(a, head, first, queries, begin, end, states, scratch);
    case Type::f16: return attend_as<Type::f16>(a, head, first, queries, begin, end, states, scratch);
    case Type::bf16: return attend_as<Type::bf16>(a, head, first, queries, begin, end, states, scratch);
  }
}

// The sums of a state times factor, in the order of dims.
inline void put_in_order(const Attention& a, const float* state, float factor, float* out) {
  const int64_t dims = sum_size(a);
  if (product_type(a) != Type::bf16) {
    for (int64_t i = 0; i < dims; ++i) out[i] = state[i] * factor;
    return;
  }
  for (int64_t at = 0; at < dims; at += 2 * kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      out[at + 2 * i] = state[at + i] * factor;
      out[at + 2 * i + 1] = state[at + kLanes + i] * factor;
    }
  }
}

inline void finish(const Attention& a, int64_t head, int64_t first, int64_t queries, const float* states,
                   float* scratch) {
  const int64_t group = a.heads / a.kv_heads, dims = sum_size(a), size = state_size(a);
  for (int64_t r = 0; r < queries * group; ++r) {
    const float* state = states + r * size;
    const int64_t q_head = head * group + r % group;
    float factor = 1, total = state[dims + 1];
    if (a.sinks != nullptr) {
      const float sink = a.sinks[q_head], top = sink > state[dims] ? sink : state[dims];
      factor = weight(state[dims], top);
      total = total * factor + weight(sink, top);
    }
    put_in_order(a, state, factor / total, scratch);
    const int64_t at = ((first + r / group) * a.heads + q_head) * a.v_head_dim;
    narrow(scratch, a.q_type, a.v_head_dim, const_cast<uint8_t*>(element(a.out, a.q_type, at)));
  }
}

inline constexpr AttentionKernels attention_kernels = {state_size, scratch_size, attend, merge, finish};

}  // namespace umlm::UNIT
