// The selective scan: a few rows of a state, whose vectors run along it, all tokens of a request one after the other.

namespace umlm::UNIT {

inline int64_t scan_scratch(const SelectiveScan& a) { return 2 * kScanRows * a.padded; }

// Where the rows of a block belong.
struct ScanRows {
  int64_t count;
  int64_t heads[kScanRows], groups[kScanRows];
};

inline ScanRows rows_of(const SelectiveScan& a, int64_t first) {
  const int64_t left = a.heads * a.channels - first;
  ScanRows rows = {left < kScanRows ? left : kScanRows, {}, {}};
  for (int64_t r = 0; r < rows.count; ++r) {
    rows.heads[r] = (first + r) / a.channels;
    rows.groups[r] = rows.heads[r] / (a.heads / a.groups);
  }
  return rows;
}

// exp(dt a) of a token's rows: a factor each, or one for each place of a row's state; what is beyond is 1.
inline void take_decays(const SelectiveScan& a, const ScanRows& rows, const float* dt, float* decays) {
  if (!a.per_place) {
    for (int64_t r = 0; r < kScanRows; ++r) decays[r] = r < rows.count ? dt[rows.heads[r]] * a.a[rows.heads[r]] : 0;
    for (int64_t r = 0; r < kScanRows; r += kLanes) put(decays + r, exp_lanes(get(decays + r)));
    return;
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* from = a.a + rows.heads[r] * a.size;
    const Lanes step = spread(dt[rows.heads[r]]);
    for (int64_t n = 0; n < a.padded; n += kLanes) {
      const int64_t left = a.size - n;
      const Lanes rates = left >= kLanes ? get(from + n) : left > 0 ? load_part<Type::f32>(from, n, left) : Lanes{};
      put(decays + r * a.padded + n, exp_lanes(step * rates));
    }
  }
}

struct ScanToken {
  const float *dt, *b, *c;  // of all heads and groups
  const float* decays;
  float* values;  // x of the rows, then their outputs
};

// kRows rows of one group: the states after the token go to `to`, which may be `from`; sums over lanes of state * c.
template <bool kPerPlace, int kRows>
inline void scan_step(const SelectiveScan& a, const ScanRows& rows, const ScanToken& t, int64_t first, Columns from,
                      Columns to, Lanes* sums) {
  const int64_t width = kPerPlace ? a.padded : 1, group = rows.groups[first] * a.padded;
  const float *decay = t.decays + first * width, *b = t.b + group, *c = t.c + group;
  const float* old = from.data + first * from.stride;
  float* next = to.data + first * to.stride;
  Lanes input[kRows], sum[kRows] = {};
  for (int i = 0; i < kRows; ++i) input[i] = spread(t.dt[rows.heads[first + i]] * t.values[first + i]);
  for (int64_t n = 0; n < a.padded; n += kLanes) {
    const Lanes taken = get(b + n), read = get(c + n);
    for (int i = 0; i < kRows; ++i) {
      const Lanes factor = kPerPlace ? get(decay + i * width + n) : spread(decay[i]);
      const Lanes state = fused(input[i], taken, held(factor * get(old + i * from.stride + n)));
      put(next + i * to.stride + n, state);
      sum[i] = fused(state, read, sum[i]);
    }
  }
  for (int i = 0; i < kRows; ++i) sums[i] = sum[i];
}

template <bool kPerPlace>
void scan_token(const SelectiveScan& a, const ScanRows& rows, const ScanToken& t, Columns from, Columns to) {
  for (int64_t first = 0; first < rows.count; first += 4) {
    Lanes sums[4] = {};
    const int64_t count = rows.count - first < 4 ? rows.count - first : 4;
    if (count == 4 && rows.groups[first] == rows.groups[first + 3]) {
      scan_step<kPerPlace, 4>(a, rows, t, first, from, to, sums);
    } else {
      for (int64_t i = 0; i < count; ++i) scan_step<kPerPlace, 1>(a, rows, t, first + i, from, to, sums + i);
    }
    float out[4];
    sum_lanes(sums[0], sums[1], sums[2], sums[3], out);
    for (int64_t i = 0; i < count; ++i) {
      float& value = t.values[first + i];
      value = a.skip == nullptr ? out[i] : out[i] + a.skip[rows.heads[first + i]] * value;
    }
  }
}

// States that are no whole vectors are computed in a tile that is filled up with zeros.
inline void selective_scan(const SelectiveScan& a, int64_t request, int64_t begin, int64_t end, int64_t row,
                           float* scratch) {
  const ScanRows rows = rows_of(a, row);
  const int64_t all = a.heads * a.channels, at = (request * all + row) * a.size;
  // the old state is only read
  const Columns before{const_cast<float*>(a.states) + at, a.size}, after{a.new_states + at, a.size};
  if (begin == end) return copy_rows(before.data, before.stride, rows.count, a.size, after);
  float* decays = scratch;
  const Columns tile{scratch + kScanRows * a.padded, a.padded};
  const bool part = a.size < a.padded;
  if (part) {
    __builtin_memset(scratch, 0, scan_scratch(a) * sizeof(float));
    copy_rows(before.data, before.stride, rows.count, a.size, tile);
  }
  alignas(64) float values[kScanRows] = {};
  for (int64_t token = begin; token < end; ++token) {
    const ScanToken t{a.dt + token * a.heads, a.b + token * a.groups * a.padded, a.c + token * a.groups * a.padded,
                      decays, values};
    take_decays(a, rows, t.dt, decays);
    widen(element(a.x.data, a.x.type, token * a.x.stride + row), a.x.type, rows.count, values);
    const Columns from = token == begin && !part ? before : tile, to = token + 1 == end && !part ? after : tile;
    a.per_place ? scan_token<true>(a, rows, t, from, to) : scan_token<false>(a, rows, t, from, to);
    narrow(values, a.x.type, rows.count, const_cast<uint8_t*>(element(a.out, a.x.type, token * all + row)));
  }
  if (part) copy_rows(tile.data, tile.stride, rows.count, a.size, after);
}

}  // namespace umlm::UNIT
