// More rows of activations meet panels: the codes of 32 weight rows, decoded once and transposed so that a vector has
// four values of each of 16 rows. Needs quantized_vnni_sums.h.

#include <stdlib.h>

namespace umlm::UNIT::vnni {

inline constexpr int kPanelRows = 32, kPanelVectors = kPanelRows / 16;
// Dwords that a step of a row has in both its vectors
inline constexpr int kStepDwords = kVectors * 16;
// Panels that the rows of activations meet together, while they fit in half a second cache.
inline constexpr int64_t kPanelBytes = 256 << 10;
inline constexpr int kMostPanels = 4;

// Memory of a thread, kept for its next product.
struct PanelMemory {
  void* data = nullptr;
  int64_t bytes = 0;
  ~PanelMemory() { free(data); }
  void* of(int64_t wanted) {
    if (wanted > bytes) {
      free(data);
      data = aligned_alloc(64, wanted);
      if (data == nullptr) __builtin_trap();
      bytes = wanted;
    }
    return data;
  }
};

// A panel's parts: codes [chunk of a step][step][dword][32 rows], as the sums go; scales and offsets [group][32 rows].
struct Panel {
  __m512i* codes;
  float *scales, *offsets;

  static int64_t code_vectors(const Product& p) { return p.steps * kStepDwords * kPanelVectors; }
  static int64_t scale_floats(const Product& p) { return padded_groups(p.w) * kPanelRows; }
  static int64_t bytes(const Product& p) { return code_vectors(p) * 64 + 2 * scale_floats(p) * sizeof(float); }
  Panel(const Product& p, void* memory) {
    codes = static_cast<__m512i*>(memory);
    scales = reinterpret_cast<float*>(codes + code_vectors(p));
    offsets = scales + scale_floats(p);
  }
};

// rows[i] lane j <-> rows[j] lane i
UMLM_INLINE void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // rows[4 * q + c]: columns c, c + 4, c + 8, c + 12 of rows 4 * q ..
  for (int c = 0; c < 4; ++c) {
    pairs[c] = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
    pairs[4 + c] = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
    pairs[8 + c] = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    pairs[12 + c] = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm512_shuffle_i32x4(pairs[c], pairs[8 + c], 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(pairs[c], pairs[8 + c], 0xdd);
    rows[4 + c] = _mm512_shuffle_i32x4(pairs[4 + c], pairs[12 + c], 0x88);
    rows[12 + c] = _mm512_shuffle_i32x4(pairs[4 + c], pairs[12 + c], 0xdd);
  }
}

// The codes of a step of the rows n .., 16 of them, into half a panel.
template <typename Policy, int kChunk, bool kWhole>
UMLM_INLINE void pack_step(const Product& p, const Policy& policy, int64_t n, int64_t count, int64_t step,
                           __m512i* out) {
  constexpr int kDwords = kChunk / 4;
  __m512i parts[kVectors][16];
  const int64_t row_bytes = p.w.row_bytes, ahead = 16 * row_bytes;
  for (int r = 0; r < 16; ++r) {
    __m512i codes[kVectors] = {};
    if (r < count) {
      const uint8_t* row = p.w.weight + (n + r) * row_bytes;
      _mm_prefetch(reinterpret_cast<const char*>(row) + ahead + step * (row_bytes / p.steps), _MM_HINT_T0);
      policy.template decode<kWhole>(row, step, p.w.columns - step * kValues, codes);
    }
    parts[0][r] = codes[0], parts[1][r] = codes[1];
  }
  for (int v = 0; v < kVectors; ++v) {
    transpose(parts[v]);
    for (int lane = 0; lane < 16; ++lane) {
      const int dword = lane * kVectors + v;
      const int64_t at = (dword / kDwords * p.steps + step) * kDwords + dword % kDwords;
      _mm512_store_si512(out + at * kPanelVectors, parts[v][lane]);
    }
  }
}

// from [16][room] floats, a group a column -> to [group][32 rows]
inline void pack_scales(const float* const* from, int64_t groups, float* to) {
  for (int64_t g = 0; g < groups; g += 16) {
    __m512i rows[16];
    for (int r = 0; r < 16; ++r) {
      rows[r] = from[r] == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(from[r] + g);
    }
    transpose(rows);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + (g + i) * kPanelRows, rows[i]);
  }
}

template <typename Policy, int C>
void pack_half(const Product& p, const Policy& policy, int64_t n, int64_t count, const Panel& panel, int half,
               float* scratch) {
  const float *scales[16] = {}, *offsets[16] = {};
  const int64_t room = 2 * scale_room(p.w);
  for (int64_t r = 0; r < count; ++r) {
    const RowScales own = expand(p.w, p.codes, n + r, scratch + r * room);
    scales[r] = own.scales, offsets[r] = own.offsets;
  }
  pack_scales(scales, p.groups, panel.scales + 16 * half);
  if (has_offsets(p.w.layout, p.codes)) pack_scales(offsets, p.groups, panel.offsets + 16 * half);
  const int64_t whole = p.w.columns / kValues;
  for (int64_t step = 0; step < whole; ++step) pack_step<Policy, C, true>(p, policy, n, count, step, panel.codes + half);
  if (whole < p.steps) pack_step<Policy, C, false>(p, policy, n, count, whole, panel.codes + half);
}

// Rows that a tile takes with D digits: as many as its sums leave registers for.
template <int D>
inline constexpr int kTileRows = D == 3 ? 4 : 6;

// sums[i][v] += the products of one digit of a chunk of M rows of activations with a panel's codes.
template <int C, int M>
UMLM_INLINE void add_chunk(const __m512i* codes, const uint8_t* digit, int64_t stride, __m512i (&sums)[M][2]) {
#pragma GCC unroll 8
  for (int dword = 0; dword < C / 4; ++dword) {
    const __m512i first = _mm512_load_si512(codes + 2 * dword), second = _mm512_load_si512(codes + 2 * dword + 1);
    for (int i = 0; i < M; ++i) {
      int four;
      __builtin_memcpy(&four, digit + i * stride + 4 * (dword / 2) + 64 * (dword % 2), 4);
      const __m512i values = _mm512_set1_epi32(four);
      sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], first, values);
      sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], second, values);
    }
  }
}

template <int M>
UMLM_INLINE void shift_left(__m512i (&sums)[M][2]) {
  for (int i = 0; i < M; ++i) {
    sums[i][0] = _mm512_slli_epi32(sums[i][0], 8), sums[i][1] = _mm512_slli_epi32(sums[i][1], 8);
  }
}

// A panel with rows m .. m + M of activations.
template <int C, int D, int M>
void panel_tile(const Product& p, const Panel& panel, bool has_offsets, int64_t m, float* out, int64_t columns) {
  constexpr int J = Chunks<C>::kCount;
  const Operand& x = p.x;
  const int64_t stride = x.digits_stride;
  __m512 totals[M][2];
  for (int j = 0; j < J; ++j) {
    __m512 sums[M][2] = {};
    const __m512i* codes = panel.codes + j * p.steps * (C / 4) * kPanelVectors;
    const uint8_t* digits = x.digits + m * stride + j * (C / 8) * 4;
    const float* units = x.units + m * x.units_stride;
    for (int64_t g = j; g < p.groups; g += J) {
      __m512i top[M][2] = {}, rest[M][2] = {};
      if constexpr (D == 3) add_chunk<C, M>(codes, digits, stride, top);
      if constexpr (D == 2) {
        add_chunk<C, M>(codes, digits, stride, rest);
        shift_left(rest);
      }
      if constexpr (D == 3) {
        add_chunk<C, M>(codes, digits + kDigitBytes, stride, rest);
        shift_left(rest);
      }
      add_chunk<C, M>(codes, digits + (D - 1) * kDigitBytes, stride, rest);
      for (int v = 0; v < 2; ++v) {
        const __m512 scale = _mm512_load_ps(panel.scales + g * kPanelRows + 16 * v);
        for (int i = 0; i < M; ++i) {
          const __m512 unit = _mm512_mul_ps(scale, _mm512_set1_ps(units[i * x.units_stride]));
          sums[i][v] = _mm512_fmadd_ps(to_float<D>(top[i][v], rest[i][v]), unit, sums[i][v]);
        }
        if (has_offsets) {
          const __m512 offset = _mm512_load_ps(panel.offsets + g * kPanelRows + 16 * v);
          for (int i = 0; i < M; ++i) {
            sums[i][v] = _mm512_fmadd_ps(offset, _mm512_set1_ps(x.sums[(m + i) * x.sums_stride + g]), sums[i][v]);
          }
        }
      }
      codes += C / 4 * kPanelVectors, digits += D * kDigitBytes, ++units;
    }
    for (int i = 0; i < M; ++i) {
      for (int v = 0; v < 2; ++v) totals[i][v] = j == 0 ? sums[i][v] : add(totals[i][v], sums[i][v]);
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int v = 0; v < 2; ++v) {
      const int64_t left = columns - 16 * v;
      const auto present = static_cast<__mmask16>(left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1);
      _mm512_mask_storeu_ps(out + (m + i) * p.stride + 16 * v, present, totals[i][v]);
    }
  }
}

// All panels of a block with `count` rows from m on, a tile of at most kTileRows.
template <int C, int D>
UMLM_INLINE void panel_rows(const Product& p, const Panel& panel, bool offsets, int64_t m, int64_t count, float* out,
                            int64_t columns) {
  switch (count) {
    case 2: return panel_tile<C, D, 2>(p, panel, offsets, m, out, columns);
    case 3: return panel_tile<C, D, 3>(p, panel, offsets, m, out, columns);
    case 4: return panel_tile<C, D, 4>(p, panel, offsets, m, out, columns);
    default:
      if constexpr (D < 3) return panel_tile<C, D, 6>(p, panel, offsets, m, out, columns);
  }
}

// Rows of the next tile when so many are left, three or more at first: 2, 3, 4 or 6, and never is one left over.
template <int D>
inline int64_t tile_rows(int64_t left) {
  if (left <= 4) return left;
  if (left == 5) return 3;
  if (D == 3) return left == 6 ? 3 : 4;
  return left <= 8 && left > 6 ? 4 : 6;
}

template <typename Policy, int C, int D>
void many_rows(const Product& p, int64_t begin, int64_t end) {
  static thread_local PanelMemory memory;
  const Policy policy(p.w);
  const bool offsets = has_offsets(p.w.layout, p.codes);
  const int64_t bytes = Panel::bytes(p), fit = kPanelBytes / bytes;
  const int64_t most = fit < 1 ? 1 : fit < kMostPanels ? fit : kMostPanels;
  auto* place = static_cast<uint8_t*>(memory.of(most * bytes));
  auto* scratch = static_cast<float*>(__builtin_alloca(16 * 2 * scale_room(p.w) * sizeof(float)));
  for (int64_t n = begin; n < end; n += most * kPanelRows) {
    const int64_t left = end - n, panels = left < most * kPanelRows ? (left + kPanelRows - 1) / kPanelRows : most;
    for (int64_t i = 0; i < 2 * panels; ++i) {
      const int64_t rows = left - 16 * i;
      const Panel panel(p, place + i / 2 * bytes);
      pack_half<Policy, C>(p, policy, n + 16 * i, rows < 0 ? 0 : rows < 16 ? rows : 16, panel, static_cast<int>(i % 2), scratch);
    }
    for (int64_t m = 0, count; m < p.x.rows; m += count) {
      count = tile_rows<D>(p.x.rows - m);
      for (int64_t i = 0; i < panels; ++i) {
        panel_rows<C, D>(p, Panel(p, place + i * bytes), offsets, m, count, p.out + n + i * kPanelRows,
                         left - i * kPanelRows);
      }
    }
  }
}

}  // namespace umlm::UNIT::vnni
