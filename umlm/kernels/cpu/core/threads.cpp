#include "core/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace umlm {
namespace {

// Rounds of polling before a thread sleeps: about 30 us, longer than the gap between two ops of a graph.
constexpr int kSpins = 1500;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// CPUs that the scheduler lets this process use.
int affinity_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// CPUs that the control group's quota is worth, rounded up; a large number without one.
int quota_count() {
  constexpr int unlimited = 1 << 20;
  if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    char quota[32] = {};
    double period = 0;
    int read = std::fscanf(file, "%31s %lf", quota, &period);
    std::fclose(file);
    if (read == 2 && std::strcmp(quota, "max") != 0 && period > 0) {
      return std::max(1, static_cast<int>(std::atof(quota) / period + 0.999));
    }
  }
  return unlimited;
}

int allowed_threads() {
  if (const char* text = std::getenv("UMLM_NUM_THREADS")) {
    if (int count = std::atoi(text); count > 0) {
      return count;
    }
  }
  return std::min(affinity_count(), quota_count());
}

struct Job {
  void (*function)(void*, int64_t, int64_t);
  void* context;
  int64_t items;
  int64_t piece;
  std::atomic<int64_t> next{0};

  void run() {
    for (;;) {
      int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= items) {
        return;
      }
      function(context, begin, std::min(begin + piece, items));
    }
  }
};

class Pool {
 public:
  explicit Pool(int threads) : pid_(getpid()), threads_(threads) {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  }

  ~Pool() {
    stop_.store(true);
    announce();
    for (auto& worker : workers_) {
      worker.join();
    }
  }

  int threads() const { return threads_; }
  pid_t pid() const { return pid_; }

  void run(Job& job) {
    job_.store(&job, std::memory_order_seq_cst);
    announce();
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
  void announce() {
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      epoch_.notify_all();
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

  pid_t pid_;
  int threads_;
  std::vector<std::thread> workers_;
  std::atomic<Job*> job_{nullptr};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int> busy_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
};

std::mutex mutex;
int wanted = 0;
Pool* pool = nullptr;

// The pool, made anew in a forked child, where the parent's threads do not exist.
Pool& current_pool() {
  int count = wanted > 0 ? wanted : allowed_threads();
  if (pool != nullptr && pool->pid() != getpid()) {
    pool = nullptr;  // abandoned: joining the parent's threads would hang
  }
  if (pool != nullptr && wanted > 0 && pool->threads() != count) {
    delete pool;
    pool = nullptr;
  }
  if (pool == nullptr) {
    pool = new Pool(count);
  }
  return *pool;
}

}  // namespace

int num_threads() {
  std::lock_guard lock(mutex);
  return current_pool().threads();
}

void set_num_threads(int count) {
  std::lock_guard lock(mutex);
  wanted = count > 0 ? count : allowed_threads();
}

void parallel_for(int64_t items, int64_t grain, void (*function)(void*, int64_t, int64_t), void* context) {
  if (items <= 0) {
    return;
  }
  grain = std::max<int64_t>(1, grain);
  std::unique_lock lock(mutex, std::try_to_lock);
  // another stream's loop holds the pool, or there is too little to share
  if (!lock.owns_lock() || items <= grain) {
    function(context, 0, items);
    return;
  }
  Pool& threads = current_pool();
  if (threads.threads() == 1) {
    function(context, 0, items);
    return;
  }
  // a few pieces a thread, so that one that is held up does not hold up all
  int64_t share = (items + threads.threads() * 4 - 1) / (threads.threads() * 4);
  Job job;
  job.function = function;
  job.context = context;
  job.items = items;
  job.piece = (std::max(share, grain) + grain - 1) / grain * grain;
  threads.run(job);
}

}  // namespace umlm
