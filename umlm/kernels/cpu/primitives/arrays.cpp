#include "primitives/arrays.h"

namespace umlm {
namespace {

bool find_out() {
  const mx::allocator::Data probe = mx::allocator::malloc(48);
  mx::allocator::Buffer buffer = probe.buffer();
  const auto distance = static_cast<uint8_t*>(buffer.raw_ptr()) - static_cast<uint8_t*>(buffer.ptr());
  return distance == kSizeBytes && *static_cast<uint64_t*>(buffer.ptr()) == mx::allocator::allocator().size(buffer);
}

}  // namespace

bool buffers_are_plain() {
  static const bool plain = find_out();
  return plain;
}

mx::allocator::Data result_memory(size_t bytes) {
  constexpr size_t kHead = 64;  // keeps the result aligned
  if (!buffers_are_plain()) return mx::allocator::malloc(bytes);
  uint8_t* memory = take_memory(bytes + kHead);
  uint8_t* size = memory + kHead - kSizeBytes;
  *reinterpret_cast<uint64_t*>(size) = bytes;
  return mx::allocator::Data(mx::allocator::Buffer(size), [memory](mx::allocator::Buffer) { give_memory(memory); });
}

}  // namespace umlm
