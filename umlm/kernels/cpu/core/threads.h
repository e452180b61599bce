// A pool of threads for loops over independent items: spins briefly, then sleeps.
#pragma once

#include <cstdint>
#include <type_traits>

namespace umlm {

// Number of threads that parallel_for uses, the caller included. Throws std::invalid_argument where UMLM_NUM_THREADS
// is no number of threads.
int num_threads();

// Set the number of threads, from 1 to 1024; 0: what UMLM_NUM_THREADS says, or else what the process may use.
// Throws std::invalid_argument for another count. Holds from the next parallel_for on.
void set_num_threads(int count);

using Piece = void (*)(void* context, int64_t begin, int64_t end) noexcept;

// Call function(context, begin, end) on pieces of [0, items), from several threads, and wait for all.
// grain  least items in a piece. Pieces are taken as threads become free, so their sizes may differ.
// One loop at a time has the pool: a second one, of another stream or within a piece, runs in its own thread alone.
void parallel_for(int64_t items, int64_t grain, Piece function, void* context);

// The same for a callable f(begin, end). It must not throw: allocate before.
template <typename F>
void parallel_for(int64_t items, int64_t grain, F&& f) {
  parallel_for(
      items, grain,
      [](void* context, int64_t begin, int64_t end) noexcept {
        (*static_cast<std::remove_reference_t<F>*>(context))(begin, end);
      },
      const_cast<std::remove_const_t<std::remove_reference_t<F>>*>(&f));
}

}  // namespace umlm
