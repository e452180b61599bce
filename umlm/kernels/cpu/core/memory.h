// Memory for results and scratch that is used again: what a step frees the next step takes, without the system's having
// to map and clear pages anew.
#pragma once

#include <cstddef>
#include <cstdint>

namespace umlm {

// At least so many bytes, aligned to 64; throws std::bad_alloc. Any thread may give them back.
uint8_t* take_memory(size_t bytes);
void give_memory(uint8_t* memory);

}  // namespace umlm
