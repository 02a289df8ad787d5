// A fixed set of threads for data-parallel loops. ParallelFor splits [0, count) into ranges of at
// least `grain`, runs them on the pool's threads and the caller, and returns when all are done.
// Which thread runs a range never affects results as long as ranges are independent: reductions
// must combine per-range partial results in range order.
//
// Thread-safe; loops from several callers are served in turn. A body must not call ParallelFor of
// the same pool.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace shoal {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 means everything runs inline. 0 means one per available core.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // body(begin, end) for disjoint ranges that cover [0, count); range starts are multiples of
  // grain.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Cores this process may run on (respects affinity and cgroup quota is not consulted).
int AvailableCores();

}  // namespace shoal
