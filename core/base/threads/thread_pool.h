// A fixed set of threads for data-parallel loops. ParallelFor splits [0, count) into ranges of at
// least `grain`, runs them on the pool's threads and the caller's, and returns when all are done.
// Which thread runs a range does not affect results as long as ranges are independent: reductions
// must combine per-range partial results in range order.
//
// Thread-safe; loops from several callers run one after the other. A body must not call ParallelFor
// of the same pool.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace shoal {

class ThreadPool {
 public:
  // `threads` includes the caller: 1 means that everything runs inline, 0 means one per available
  // core.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(begin, end) for disjoint ranges that cover [0, count); range starts are multiples of
  // grain.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the number of cores that this process may run on (respects affinity, ignores the cgroup
// quota).
int AvailableCores();

}  // namespace shoal
