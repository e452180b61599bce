// Attention over keys in pages, and what prepares its inputs: rotary positions and the pages' rows.
#pragma once

#include "core/types.h"

namespace umlm {

// Keys are met in blocks, and blocks in parts, whose borders are multiples of these places in a sequence. A query's
// sums are taken in the order of blocks and parts, so that they do not depend on who shares its computation.
inline constexpr int64_t kBlockKeys = 64;
inline constexpr int64_t kPartKeys = 512;
// From so many rows on, packing the keys costs less than summing over lanes.
inline constexpr int64_t kManyRows = 24;

// How pages keep the values of a token and head: as they are, or in 8 or 4 bits (units/page_rows.h has the format).
enum class Kept : int { f32, f16, bf16, q8, q4 };

// A token's heads one after another, `bytes` each; dense keys and values lie like pages.
struct KeptRows {
  Kept kind;
  int64_t bytes;
  const void* base;
};

// The queries of one sequence and its keys. The rows of a kv head are (query, head of its group), in that order.
struct Attention {
  int64_t queries, keys;
  int64_t heads, kv_heads, head_dim, v_head_dim;
  Type q_type;  // of q [queries, heads, head_dim] and out [queries, heads, v_head_dim]
  const void* q;
  KeptRows k, v;  // [slots, kv_heads, bytes]
  void* out;
  const int32_t* pages;  // key i lies in slot pages[i / page_size] * page_size + i % page_size; null: in slot i
  int64_t page_size;
  const int32_t* positions;      // of queries
  const int32_t* key_positions;  // null: key i has position i
  int64_t window;                // 0: none
  float scale, softcap;          // softcap 0: none
  const float* sinks;            // [heads] or null
};

struct AttentionKernels {
  // float32 values of the state of one row: weighted sums of values, largest score, sum of weights
  int64_t (*state_size)(const Attention& a);
  // float32 values that attend needs for `queries` queries
  int64_t (*scratch_size)(const Attention& a, int64_t queries);
  // states [rows, state_size] of the rows of queries [first, first + queries) after the keys of parts [begin, end)
  void (*attend)(const Attention& a, int64_t kv_head, int64_t first, int64_t queries, int64_t begin, int64_t end,
                 float* states, float* scratch);
  // total becomes the states after the keys of both; `other` has the later parts
  void (*merge)(const Attention& a, int64_t rows, float* total, const float* other);
  // the rows' part of out, from their final states; scratch as attend's
  void (*finish)(const Attention& a, int64_t kv_head, int64_t first, int64_t queries, const float* states,
                 float* scratch);
};

struct RopeKernels {
  // Cosines and sines of position * inv_freq, times scale, into table [2, half].
  void (*turns)(int32_t position, const float* inv_freq, int64_t half, float scale, float* table);
  // Rotate the pairs (i, i + half) of each of `heads` rows [dims] by table; `back` turns the other way.
  // scratch has dims float32 values; out may be x.
  void (*rope_rows)(const void* x, Type type, int64_t heads, int64_t dims, int64_t half, const float* table, bool back,
                    float* scratch, void* out);
};

struct PageKernels {
  // What the `dims` values of one token and head take.
  int64_t (*row_bytes)(Kept kind, int64_t dims);
  // Put rows [count, heads, dims] into the places slots[i] of pages [num_slots, heads, row_bytes]; scratch has
  // heads * dims float32 values. A place's bytes depend on its own row alone.
  void (*write_rows)(const void* rows, Type type, int64_t count, int64_t heads, int64_t dims, const int32_t* slots,
                     Kept kind, void* pages, float* scratch);
};

}  // namespace umlm
