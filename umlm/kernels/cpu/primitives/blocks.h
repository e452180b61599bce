// What a stack of blocks asks of their halves.
#pragma once

#include <memory>
#include <vector>

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

// What a call of a stack knows of each of its blocks' steps: arrays as its primitive gets them, all computed.
struct BlockCall {
  const mx::array& x;  // of the first block; all have its shape and type
  const mx::array& inv_freq;  // not float32: nothing is turned
  const mx::array &keys, &values;
  const PagesOfCall& pages;
  Precision precision;
};

// One half of a block during one call, ready to run in the stream's thread.
class AttentionStep {
 public:
  virtual ~AttentionStep() = default;
  // Writes the new keys and values into the pages where they are.
  virtual void run(const void* x, void* out) = 0;
};

class FeedForwardStep {
 public:
  virtual ~FeedForwardStep() = default;
  virtual void run(const void* x, void* out) = 0;
};

class AttentionOperation {
 public:
  virtual ~AttentionOperation() = default;
  virtual std::unique_ptr<AttentionStep> step(const BlockCall& call) const = 0;
  virtual const std::vector<mx::array>& weights() const = 0;
};

class FeedForwardOperation {
 public:
  virtual ~FeedForwardOperation() = default;
  virtual std::unique_ptr<FeedForwardStep> step(const BlockCall& call) const = 0;
  virtual const std::vector<mx::array>& weights() const = 0;
};

}  // namespace umlm
