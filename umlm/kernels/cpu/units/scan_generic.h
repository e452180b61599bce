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
  const int64_t width = a.per_place ? a.padded : 1, count = a.per_place ? a.size : 1;
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* from = a.a + rows.heads[r] * count;
    const float step = dt[rows.heads[r]];
    for (int64_t n = 0; n < count; ++n) decays[r * width + n] = step * from[n];
    for (int64_t n = count; n < width; ++n) decays[r * width + n] = 0;
  }
  for (int64_t i = 0; i < rows.count * width; ++i) decays[i] = exp(decays[i]);
}

// One row and token: the state after it goes to `to`, which may be `from`. Returns the lanes' sums of state * c.
template <bool kPerPlace>
inline Lanes scan_step(const float* from, float* to, int64_t size, const float* decay, float input, const float* b,
                       const float* c) {
  Lanes sum = {};
  for (int64_t n = 0; n < size; n += kLanes) {
    const Lanes factor = kPerPlace ? get(decay + n) : spread(*decay);
    const Lanes state = fused(spread(input), get(b + n), held(factor * get(from + n)));
    put(to + n, state);
    sum = fused(state, get(c + n), sum);
  }
  return sum;
}

struct ScanToken {
  const float *dt, *b, *c;  // of all heads and groups
  const float* decays;
  float* values;  // x of the rows, then their outputs
};

template <bool kPerPlace>
void scan_token(const SelectiveScan& a, const ScanRows& rows, const ScanToken& t, Columns from, Columns to) {
  const int64_t width = kPerPlace ? a.padded : 1;
  for (int64_t first = 0; first < rows.count; first += 4) {
    Lanes sums[4] = {};
    const int64_t count = rows.count - first < 4 ? rows.count - first : 4;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = first + i, group = rows.groups[r] * a.padded;
      sums[i] = scan_step<kPerPlace>(from.data + r * from.stride, to.data + r * to.stride, a.padded,
                                     t.decays + r * width, t.dt[rows.heads[r]] * t.values[r], t.b + group,
                                     t.c + group);
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
