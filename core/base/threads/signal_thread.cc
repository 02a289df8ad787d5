#include "core/base/threads/signal_thread.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <utility>

namespace shoal {
namespace {

// Tells the thread to end.
constexpr int kEnd = SIGUSR1;

const sigset_t& Signals() {
  static const sigset_t signals = [] {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, kEnd}) {
      sigaddset(&set, signal);
    }
    return set;
  }();
  return signals;
}

void Run(const SignalThread::OnSignal& on_signal, const std::atomic<bool>& ending) {
  int signal = 0;
  for (bool first = true;
       sigwait(&Signals(), &signal) == 0 && (signal != kEnd || !ending.load());) {
    if (signal != kEnd) {  // others may send it too
      on_signal(signal == SIGTERM ? "SIGTERM" : "SIGINT", first);
      first = false;
    }
  }
}

}  // namespace

void SignalThread::Block() { pthread_sigmask(SIG_BLOCK, &Signals(), nullptr); }

SignalThread::SignalThread(OnSignal on_signal)
    : thread_([this, on_signal = std::move(on_signal)] { Run(on_signal, ending_); }) {}

SignalThread::~SignalThread() {
  ending_.store(true);
  pthread_kill(thread_.native_handle(), kEnd);
  thread_.join();
}

}  // namespace shoal
