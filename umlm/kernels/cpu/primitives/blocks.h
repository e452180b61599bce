// What a stack of blocks asks of their halves.
#pragma once

#include <memory>
#include <optional>

#include "primitives/attention.h"

namespace umlm {

// The pages of one call, but for the arrays, which every layer has of its own.
struct PagesOfCall {
  const mx::array& positions;
  const mx::array& slots;
  std::shared_ptr<PageTable> table;
  int64_t page_size;
  int k_bits, v_bits;  // 0 for floats
};

class AttentionOperation {
 public:
  virtual ~AttentionOperation() = default;
  // x [1, T, columns] of any float type; keys and values become the written pages, in place where it can be.
  virtual mx::array apply(const mx::array& x, const std::optional<mx::array>& inv_freq, mx::array& keys,
                          mx::array& values, const PagesOfCall& call, mx::Stream stream) const = 0;
};

class FeedForwardOperation {
 public:
  virtual ~FeedForwardOperation() = default;
  // x [..., columns] of any float type
  virtual mx::array apply(const mx::array& x, mx::Stream stream) const = 0;
};

}  // namespace umlm
