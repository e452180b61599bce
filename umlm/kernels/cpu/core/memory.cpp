#include "core/memory.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace umlm {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kWorthKeeping = 16 << 10;  // below it the C library's own lists serve
constexpr size_t kMostKept = 256 << 20;

// Before every block lies its capacity.
size_t& capacity_of(uint8_t* memory) { return *reinterpret_cast<size_t*>(memory - kAlignment); }

class Kept {
 public:
  // The smallest block that is large enough and not twice too large, or null.
  uint8_t* take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t best = blocks_.size();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const size_t capacity = capacity_of(blocks_[i]);
      const bool fits = capacity >= bytes && capacity <= 2 * bytes;
      if (fits && (best == blocks_.size() || capacity < capacity_of(blocks_[best]))) best = i;
    }
    if (best == blocks_.size()) return nullptr;
    uint8_t* found = blocks_[best];
    blocks_[best] = blocks_.back();
    blocks_.pop_back();
    bytes_ -= capacity_of(found);
    return found;
  }

  bool give(uint8_t* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes_ + capacity_of(memory) > kMostKept) return false;
    blocks_.push_back(memory);
    bytes_ += capacity_of(memory);
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<uint8_t*> blocks_;
  size_t bytes_ = 0;
};

Kept& kept() {
  static Kept& blocks = *new Kept;  // arrays may outlive static objects
  return blocks;
}

}  // namespace

uint8_t* take_memory(size_t bytes) {
  const size_t capacity = (bytes + kAlignment) / kAlignment * kAlignment;  // one byte more at least
  if (capacity >= kWorthKeeping) {
    if (uint8_t* found = kept().take(capacity)) return found;
  }
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, capacity + kAlignment));
  if (data == nullptr) throw std::bad_alloc();
  capacity_of(data + kAlignment) = capacity;
  return data + kAlignment;
}

void give_memory(uint8_t* memory) {
  if (capacity_of(memory) < kWorthKeeping || !kept().give(memory)) std::free(memory - kAlignment);
}

}  // namespace umlm
