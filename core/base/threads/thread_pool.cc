#include "core/base/threads/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/check.h"

namespace shoal {

// One loop at a time: its ranges are handed out under the mutex, which is cheap since ranges are
// coarse.
struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable work_ready;  // a loop has ranges to hand out, or the pool stops
  std::condition_variable loop_done;   // the last range of the loop has finished
  std::mutex callers;                  // serialises ParallelFor calls
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t next = 0;
  int64_t count = 0;
  int64_t step = 1;
  int64_t unfinished = 0;
  bool stopping = false;
  std::vector<std::thread> threads;

  // Runs ranges until none is left; `lock` holds the mutex on entry and exit.
  void Drain(std::unique_lock<std::mutex>& lock) {
    while (next < count) {
      const int64_t begin = next;
      const int64_t end = std::min(count, begin + step);
      next = end;
      const auto* loop_body = body;
      lock.unlock();
      (*loop_body)(begin, end);
      lock.lock();
      if (--unfinished == 0) {
        loop_done.notify_all();
      }
    }
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      work_ready.wait(lock, [this] { return stopping || next < count; });
      if (stopping) {
        return;
      }
      Drain(lock);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  SHOAL_CHECK(threads >= 0);
  const int total = threads == 0 ? AvailableCores() : threads;
  for (int i = 1; i < total; ++i) {
    state_->threads.emplace_back([state = state_.get()] { state->Run(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work_ready.notify_all();
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
}

int ThreadPool::threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body) {
  SHOAL_CHECK(grain > 0);
  if (count <= 0) {
    return;
  }
  if (state_->threads.empty() || count <= grain) {
    body(0, count);
    return;
  }
  // About four ranges per thread even out unequal ones at little cost.
  const int64_t wanted = (count + threads() * 4 - 1) / (threads() * 4);
  const int64_t step = (std::max(wanted, grain) + grain - 1) / grain * grain;
  std::lock_guard<std::mutex> one_caller(state_->callers);
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->body = &body;
  state_->next = 0;
  state_->count = count;
  state_->step = step;
  state_->unfinished = (count + step - 1) / step;
  state_->work_ready.notify_all();
  state_->Drain(lock);
  state_->loop_done.wait(lock, [this] { return state_->unfinished == 0; });
}

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace shoal
