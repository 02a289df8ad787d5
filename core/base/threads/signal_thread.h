// Handles SIGTERM and SIGINT on a separate thread: unlike a signal handler, it may lock, log and
// wait.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace shoal {

class SignalThread {
 public:
  // Blocks the signals in this thread and all started from now on. Call before any other thread
  // starts; signals that arrive before there is a SignalThread wait for it.
  static void Block();

  // The thread calls `on_signal` for each signal. `first`: none came before.
  using OnSignal = std::function<void(const std::string& name, bool first)>;
  explicit SignalThread(OnSignal on_signal);
  // Returns once on_signal has returned.
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace shoal
