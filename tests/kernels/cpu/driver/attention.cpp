// Attention of one sequence over shuffled pages against softmax in double; rotary positions and writes into pages.
#include "core/attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "check.h"
#include "core/threads.h"
#include "parts.h"

namespace {

using umlm::Attention;
using umlm::Kept;

// Floats as they are, or 8 or 4 bits.
Kept any_kind(Random& random) { return static_cast<Kept>(between(random, 0, 4)); }

float from_bf16(const uint8_t* at) {
  const uint32_t bits = uint32_t(at[0] | at[1] << 8) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The values of a quantized row, by the format that units/page_rows.h states.
void read_row(const uint8_t* row, int bits, int64_t dims, float* values) {
  const uint8_t* codes = row + (dims + 31) / 32 * 4;
  for (int64_t d = 0; d < dims; ++d) {
    const uint8_t *group = row + d / 32 * 4, *piece = codes + d / 16 * 8;
    const int code = bits == 8 ? codes[d] : piece[d % 2 * 4 + d % 16 / 4] >> d / 2 % 2 * 4 & 15;
    values[d] = from_bf16(group) * float(code) + from_bf16(group + 2);
  }
}

// Random pages [slots, heads, dims], and what they hold.
struct Pages {
  Kept kind;
  int64_t heads, dims, bytes;
  std::unique_ptr<uint8_t[]> data;
  std::unique_ptr<float[]> values;

  Pages(Random& random, Kept kind, int64_t slots, int64_t heads, int64_t dims)
      : kind(kind), heads(heads), dims(dims), bytes(umlm::kernels().pages.row_bytes(kind, dims)) {
    data = exactly<uint8_t>(slots * heads * bytes);
    std::fill_n(data.get(), slots * heads * bytes, 0);
    Stored rows(random, umlm::Type::f32, slots * heads * dims);
    auto order = exactly<int32_t>(slots);
    std::iota(order.get(), order.get() + slots, 0);
    write(rows, slots, order.get());
    read(slots);
  }

  void write(const Stored& rows, int64_t count, const int32_t* slots) {
    auto scratch = exactly<float>(heads * dims);
    umlm::kernels().pages.write_rows(rows.data.get(), rows.type, count, heads, dims, slots, kind, data.get(),
                                     scratch.get());
  }

  void read(int64_t slots) {
    values = exactly<float>(slots * heads * dims);
    for (int64_t i = 0; i < slots * heads; ++i) {
      const uint8_t* row = data.get() + i * bytes;
      if (kind < Kept::q8) {
        umlm::kernels().rows.widen(row, static_cast<umlm::Type>(kind), dims, values.get() + i * dims);
      } else {
        read_row(row, kind == Kept::q8 ? 8 : 4, dims, values.get() + i * dims);
      }
    }
  }

  double tolerance() const {
    return kind == Kept::q8 ? 0.01 : kind == Kept::q4 ? 0.15 : rounding(static_cast<umlm::Type>(kind));
  }
};

struct Case {
  Attention a{};
  std::unique_ptr<Stored> q;
  std::unique_ptr<Pages> k, v;
  std::unique_ptr<int32_t[]> pages, positions;
  std::unique_ptr<float[]> sinks;
  std::unique_ptr<uint8_t[]> out;

  explicit Case(Random& random) {
    a.keys = between(random, 1, between(random, 0, 3) == 0 ? 1300 : 90);
    a.queries = between(random, 1, std::min<int64_t>(a.keys, between(random, 0, 1) == 0 ? 3 : 70));
    a.kv_heads = between(random, 1, 2);
    a.heads = a.kv_heads * between(random, 1, 3);
    a.head_dim = between(random, 1, 40) * (between(random, 0, 1) == 0 ? 1 : 2);
    a.v_head_dim = between(random, 0, 2) == 0 ? between(random, 1, 50) : a.head_dim;
    a.q_type = any_type(random);
    a.k.kind = any_kind(random), a.v.kind = between(random, 0, 1) == 0 ? any_kind(random) : a.k.kind;
    a.page_size = between(random, 0, 1) == 0 ? 16 : 5;
    a.window = between(random, 0, 2) == 0 ? between(random, 1, 100) : 0;
    a.scale = 0.3f, a.softcap = between(random, 0, 2) == 0 ? 5.f : 0.f;
    fill(random);
  }

  void fill(Random& random) {
    const int64_t count = (a.keys + a.page_size - 1) / a.page_size, slots = (count + 2) * a.page_size;
    std::vector<int32_t> ids(count + 2);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    pages = exactly<int32_t>(count);
    std::copy_n(ids.begin(), count, pages.get());
    positions = exactly<int32_t>(a.queries);
    for (int64_t i = 0; i < a.queries; ++i) positions[i] = static_cast<int32_t>(a.keys - a.queries + i);
    q = std::make_unique<Stored>(random, a.q_type, a.queries * a.heads * a.head_dim);
    k = std::make_unique<Pages>(random, a.k.kind, slots, a.kv_heads, a.head_dim);
    v = std::make_unique<Pages>(random, a.v.kind, slots, a.kv_heads, a.v_head_dim);
    out = exactly<uint8_t>(a.queries * a.heads * a.v_head_dim * size_of(a.q_type));
    if (between(random, 0, 1) == 1) sinks = normal(random, a.heads);
    a.q = q->data.get(), a.out = out.get();
    a.k.base = k->data.get(), a.k.bytes = k->bytes, a.v.base = v->data.get(), a.v.bytes = v->bytes;
    a.pages = pages.get(), a.positions = positions.get(), a.sinks = sinks.get();
  }

  int64_t slot(int64_t key) const { return pages[key / a.page_size] * a.page_size + key % a.page_size; }

  void softmax(int64_t query, int64_t head, double* result) const {
    const int64_t kv_head = head / (a.heads / a.kv_heads);
    std::vector<double> scores(a.keys, -INFINITY);
    for (int64_t i = 0; i < a.keys; ++i) {
      if (i > positions[query] || (a.window > 0 && i <= positions[query] - a.window)) continue;
      double score = 0;
      for (int64_t d = 0; d < a.head_dim; ++d) {
        score += double(q->values[(query * a.heads + head) * a.head_dim + d]) *
                 k->values[(slot(i) * a.kv_heads + kv_head) * a.head_dim + d];
      }
      score *= a.scale;
      scores[i] = a.softcap > 0 ? a.softcap * std::tanh(score / a.softcap) : score;
    }
    double most = *std::max_element(scores.begin(), scores.end()), total = 0;
    if (sinks) most = std::max(most, double(sinks[head]));
    if (sinks) total = std::exp(sinks[head] - most);
    for (double& score : scores) total += score = std::exp(score - most);
    for (int64_t d = 0; d < a.v_head_dim; ++d) {
      result[d] = 0;
      for (int64_t i = 0; i < a.keys; ++i) {
        result[d] += scores[i] / total * v->values[(slot(i) * a.kv_heads + kv_head) * a.v_head_dim + d];
      }
    }
  }
};

// Parts by themselves, by several threads, then merged in their order.
void attend(const Attention& a) {
  const umlm::AttentionKernels& k = umlm::kernels().attention;
  const int64_t parts = (a.keys + umlm::kPartKeys - 1) / umlm::kPartKeys;
  const int64_t size = a.queries * (a.heads / a.kv_heads) * k.state_size(a);
  auto states = exactly<float>(a.kv_heads * parts * size);
  umlm::parallel_for(a.kv_heads * parts, 1, [&](int64_t begin, int64_t end) {
    auto scratch = exactly<float>(k.scratch_size(a, a.queries));
    for (int64_t i = begin; i < end; ++i) {
      k.attend(a, i / parts, 0, a.queries, i % parts, i % parts + 1, states.get() + i * size, scratch.get());
    }
  });
  for (int64_t head = 0; head < a.kv_heads; ++head) {
    float* total = states.get() + head * parts * size;
    for (int64_t i = 1; i < parts; ++i) k.merge(a, size / k.state_size(a), total, total + i * size);
    auto scratch = exactly<float>(k.scratch_size(a, a.queries));
    k.finish(a, head, 0, a.queries, total, scratch.get());
  }
}

void one_attention(Random& random) {
  Case c(random);
  attend(c.a);
  const int64_t count = c.a.queries * c.a.heads * c.a.v_head_dim;
  auto found = exactly<float>(count);
  umlm::kernels().rows.widen(c.out.get(), c.a.q_type, count, found.get());
  auto wanted = exactly<double>(count);
  for (int64_t i = 0; i < c.a.queries * c.a.heads; ++i) {
    c.softmax(i / c.a.heads, i % c.a.heads, wanted.get() + i * c.a.v_head_dim);
  }
  check_near(found.get(), wanted.get(), count, rounding(c.a.q_type), "attention");
}

void one_rotation(Random& random) {
  const umlm::RopeKernels& k = umlm::kernels().rope;
  const int64_t heads = between(random, 1, 4), half = between(random, 1, 40), dims = 2 * half + between(random, 0, 9);
  const auto position = static_cast<int32_t>(between(random, 0, 1 << 20));
  Stored x(random, any_type(random), heads * dims);
  auto inv_freq = exactly<float>(half), table = exactly<float>(2 * half), scratch = exactly<float>(dims);
  for (int64_t i = 0; i < half; ++i) inv_freq[i] = std::pow(10000.f, -float(i) / half);
  auto out = exactly<uint8_t>(heads * dims * size_of(x.type));
  k.turns(position, inv_freq.get(), half, 1.5f, table.get());
  k.rope_rows(x.data.get(), x.type, heads, dims, half, table.get(), false, scratch.get(), out.get());
  auto found = exactly<float>(heads * dims);
  umlm::kernels().rows.widen(out.get(), x.type, heads * dims, found.get());
  auto wanted = exactly<double>(heads * dims);
  for (int64_t at = 0; at < heads * dims; at += dims) {
    for (int64_t i = 2 * half; i < dims; ++i) wanted[at + i] = x.values[at + i];
    for (int64_t i = 0; i < half; ++i) {
      const float angle = float(position) * inv_freq[i];
      const double cosine = 1.5 * std::cos(double(angle)), sine = 1.5 * std::sin(double(angle));
      wanted[at + i] = x.values[at + i] * cosine - x.values[at + half + i] * sine;
      wanted[at + half + i] = x.values[at + half + i] * cosine + x.values[at + i] * sine;
    }
  }
  check_near(found.get(), wanted.get(), heads * dims, rounding(x.type), "rope");
}

void one_write(Random& random) {
  const int64_t slots = between(random, 1, 20), count = between(random, 1, slots);
  const int64_t heads = between(random, 1, 3), dims = between(random, 1, 70), width = heads * dims;
  std::vector<int32_t> ids(slots);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  Stored rows(random, any_type(random), count * width);
  Pages pages(random, any_kind(random), slots, heads, dims);
  auto wanted = exactly<double>(slots * width);
  std::copy_n(pages.values.get(), slots * width, wanted.get());
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(rows.values.get() + i * width, width, wanted.get() + ids[i] * width);
  }
  auto chosen = exactly<int32_t>(count);
  std::copy_n(ids.begin(), count, chosen.get());
  pages.write(rows, count, chosen.get());
  pages.read(slots);
  check_near(pages.values.get(), wanted.get(), slots * width, pages.tolerance(), "write_rows");
}

}  // namespace

void check_attention() {
  Random random(5);
  for (int i = 0; i < 80; ++i) {
    one_attention(random);
    one_rotation(random);
    one_write(random);
  }
}
