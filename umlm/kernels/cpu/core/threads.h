// A pool of threads for loops over independent items: spins briefly, then sleeps.
#pragma once

#include <cstdint>

namespace umlm {

// Number of threads that parallel_for uses, the caller included.
int num_threads();

// Set the number of threads; below 1 means: what the process may use.
void set_num_threads(int count);

// Call function(context, begin, end) on pieces of [0, items), from several threads, and wait for all.
// grain  least items in a piece. Pieces are taken as threads become free, so their sizes may differ.
void parallel_for(int64_t items, int64_t grain, void (*function)(void*, int64_t, int64_t), void* context);

// The same for a callable f(begin, end).
template <typename F>
void parallel_for(int64_t items, int64_t grain, F&& f) {
  parallel_for(
      items, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<F*>(context))(begin, end); }, &f);
}

}  // namespace umlm
