// SIGTERM and SIGINT, taken on a thread of their own: what is done about them may lock, log and
// wait, as a signal handler may not.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace shoal {

class SignalThread {
 public:
  // Keeps the signals from all threads that are started from now on, and from this one. Before any
  // other thread is started; those that come before there is a SignalThread wait for it.
  static void Block();

  // `on_signal` is called for each, on the thread. `first`: none came before.
  using OnSignal = std::function<void(const std::string& name, bool first)>;
  explicit SignalThread(OnSignal on_signal);
  // Once on_signal has returned.
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace shoal
