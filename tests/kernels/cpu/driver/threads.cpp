// The thread pool: every item once, whatever the count, the company, and the moment.
#include "core/threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "parts.h"

namespace {

// Plain, not atomic, so that ThreadSanitizer sees an item that two threads have, or one that is read too early.
void one_loop(Random& random) {
  const int64_t items = between(random, 0, 300), grain = between(random, 1, 40);
  auto visits = exactly<int>(items);
  for (int64_t i = 0; i < items; ++i) visits[i] = 0;
  umlm::parallel_for(items, grain, [&](int64_t begin, int64_t end) {
    CHECK(begin < end && (end - begin >= grain || end == items), "%ld to %ld, grain %ld", begin, end, grain);
    for (int64_t i = begin; i < end; ++i) ++visits[i];
  });
  for (int64_t i = 0; i < items; ++i) {
    CHECK(visits[i] == 1, "item %ld of %ld was visited %d times", i, items, visits[i]);
  }
}

void loops(unsigned seed, int count) {
  Random random(seed);
  for (int i = 0; i < count; ++i) {
    one_loop(random);
    if (i % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(between(random, 0, 300)));
  }
}

void nested_loops() {
  std::atomic<int> visits{0};
  umlm::parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      umlm::parallel_for(5, 1, [&](int64_t from, int64_t to) { visits += static_cast<int>(to - from); });
    }
  });
  CHECK(visits == 40, "%d", visits.load());
}

void loops_in_company() {
  std::vector<std::thread> streams;
  for (unsigned seed = 0; seed < 4; ++seed) {
    streams.emplace_back([seed] { loops(seed, 300); });
  }
  for (int count : {2, 5, 1, 3}) {  // also while they run
    umlm::set_num_threads(count);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (auto& stream : streams) stream.join();
}

// A forked child has no workers, and may be forked while the pool is in use.
void loops_in_a_child() {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) loops(7, 5);
  });
  for (int i = 0; i < 10; ++i) {
    pid_t child = fork();
    if (child == 0) {
      loops(i, 20);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0, "the child ended with %d", status);
  }
  stop = true;
  busy.join();
}

}  // namespace

void check_threads(bool forking) {
  for (int count : {1, 2, 3, 8, 64, 2}) {
    umlm::set_num_threads(count);
    CHECK(umlm::num_threads() == count, "%d", umlm::num_threads());
    loops(count, 400);
    nested_loops();
  }
  loops_in_company();
  umlm::set_num_threads(3);
  if (forking) loops_in_a_child();
  for (int count : {-1, 1025}) {
    bool refused = false;
    try {
      umlm::set_num_threads(count);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused, "%d threads", count);
  }
}
