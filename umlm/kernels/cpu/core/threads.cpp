#include "core/threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/cpus.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace umlm {
namespace {

// Rounds of polling before a thread sleeps: 30 to 70 us, longer than the gap between two ops of a graph.
constexpr int kSpins = 1500;
constexpr int kMaxThreads = 1024;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int allowed_threads() {
  const char* text = std::getenv("UMLM_NUM_THREADS");
  if (text == nullptr || *text == 0) {
    return std::min(usable_cpus(), kMaxThreads);
  }
  int count = 0;
  const char* end = text + std::strlen(text);
  auto [stop, error] = std::from_chars(text, end, count);
  if (error != std::errc() || stop != end || count < 1 || count > kMaxThreads) {
    throw std::invalid_argument("UMLM_NUM_THREADS='" + std::string(text) +
                                "' is no number of threads: give one from 1 to 1024, or unset it");
  }
  return count;
}

// A run of items that one thread takes piece by piece; others help when theirs is done. What a thread reads thus lies
// together, and what it asks for ahead of time is mostly its own.
struct alignas(64) Share {
  std::atomic<int64_t> next;
  int64_t end;
};
constexpr int kMaxShares = 64;

struct Job {
  Piece function;
  void* context;
  int64_t piece;
  int num_shares;
  Share shares[kMaxShares];
  alignas(64) std::atomic<int> seats{0};

  Job(Piece function, void* context, int64_t items, int64_t grain, int threads) : function(function), context(context) {
    const int64_t most = (items + grain - 1) / grain;
    num_shares = static_cast<int>(std::min<int64_t>({threads, kMaxShares, most}));
    const int64_t share = (most + num_shares - 1) / num_shares * grain;
    // a few pieces a thread, so that one that is held up does not hold up all
    piece = ((share + 3) / 4 + grain - 1) / grain * grain;
    for (int i = 0; i < num_shares; ++i) {
      shares[i].next.store(std::min(i * share, items), std::memory_order_relaxed);
      shares[i].end = std::min((i + 1) * share, items);
    }
  }

  void run() noexcept {
    const int seat = seats.fetch_add(1, std::memory_order_relaxed);
    for (int i = 0; i < num_shares; ++i) {
      take(shares[(seat + i) % num_shares]);
    }
  }

 private:
  void take(Share& share) noexcept {
    for (;;) {
      const int64_t begin = share.next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= share.end) {
        return;
      }
      function(context, begin, std::min(begin + piece, share.end));
    }
  }
};

class Pool {
 public:
  explicit Pool(int threads) : asked_(threads) {
    workers_.reserve(threads - 1);
    try {
      for (int i = 1; i < threads; ++i) {
        workers_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error&) {
      // the system's limit is reached: those that could be started serve
    }
  }

  ~Pool() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (auto& worker : workers_) {
      worker.join();
    }
  }

  int asked() const { return asked_; }
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(Job& job) {
    job_.store(&job, std::memory_order_seq_cst);
    announce(job.num_shares - 1);
    job.run();
    // all pieces are taken: a thread that wakes now finds no job, and those that have one are waited for
    job_.store(nullptr, std::memory_order_seq_cst);
    for (int spins = 0; busy_.load(std::memory_order_seq_cst) != 0; ++spins) {
      relax();
      if (spins > kSpins) {
        std::this_thread::yield();
      }
    }
  }

 private:
  // Threads that spin see the epoch; of those that sleep, as many are woken as can be of use.
  void announce(int useful) {
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    const int sleeping = sleeping_.load(std::memory_order_seq_cst);
    for (int i = 0; i < std::min(useful, sleeping); ++i) {
      epoch_.notify_one();
    }
  }

  void work() {
    uint32_t seen = 0;
    for (;;) {
      seen = wait(seen);
      if (stop_.load()) {
        return;
      }
      busy_.fetch_add(1, std::memory_order_seq_cst);
      if (Job* job = job_.load(std::memory_order_seq_cst)) {
        job->run();
      }
      busy_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  // Returns the new epoch: spins first, then sleeps on the kernel's futex.
  uint32_t wait(uint32_t seen) {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (uint32_t now = epoch_.load(std::memory_order_acquire); now != seen) {
        return now;
      }
      relax();
    }
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    while (epoch_.load(std::memory_order_seq_cst) == seen) {
      epoch_.wait(seen);
    }
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    return epoch_.load(std::memory_order_acquire);
  }

  const int asked_;
  std::vector<std::thread> workers_;
  // on lines of their own: many threads poll one and write the other
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<Job*> job_{nullptr};
  alignas(64) std::atomic<int> busy_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
};

std::atomic<int> wanted{0};
std::atomic<bool> taken{false};  // whoever sets it has the pool
Pool* pool = nullptr;            // never deleted at exit, where other threads may still compute

int count_threads() {
  static const int allowed = allowed_threads();
  const int count = wanted.load(std::memory_order_relaxed);
  return count > 0 ? count : allowed;
}

// A forked child has none of the parent's threads, and perhaps a copy of a pool in use: it makes its own.
void forget_pool() {
  pool = nullptr;
  taken.store(false);
}

Pool& current_pool(int count) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  if (pool != nullptr && pool->asked() != count) {
    delete pool;
    pool = nullptr;
  }
  if (pool == nullptr) {
    pool = new Pool(count);
  }
  return *pool;
}

class Turn {
 public:
  Turn() : mine_(!taken.exchange(true, std::memory_order_acquire)) {}
  ~Turn() {
    if (mine_) taken.store(false, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return mine_; }

 private:
  bool mine_;
};

}  // namespace

int num_threads() { return count_threads(); }

void set_num_threads(int count) {
  if (count < 0 || count > kMaxThreads) {
    throw std::invalid_argument("the number of threads must be from 1 to 1024, or 0 for what the process may use, not " +
                                std::to_string(count));
  }
  wanted.store(count, std::memory_order_relaxed);
}

void parallel_for(int64_t items, int64_t grain, Piece function, void* context) {
  if (items <= 0) {
    return;
  }
  grain = std::max<int64_t>(1, grain);
  const int count = count_threads();
  if (count == 1 || items <= grain) {
    function(context, 0, items);
    return;
  }
  Turn turn;
  if (!turn) {
    function(context, 0, items);
    return;
  }
  Job job(function, context, items, grain, count);
  current_pool(count).run(job);
}

}  // namespace umlm
