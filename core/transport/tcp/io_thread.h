// A thread that moves the bytes of connections in turn, unless the thread that waits for them does
// (sockets.h), and pings silent peers.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/file.h"
#include "core/transport/adaptive_spin.h"
#include "core/transport/tcp/sockets.h"

namespace shoal::transport {

// A peer is pinged after one tick of silence, and counts as dead after this many ticks less one.
inline constexpr int kTicksPerKeepAlive = 5;

class TcpIoThread {
 public:
  // `spin`: how long it polls for more, yielding the core between looks, before it sleeps. An
  // answer often follows within that time, and a wake-up costs more than most answers.
  static absl::StatusOr<std::unique_ptr<TcpIoThread>> Start(absl::Duration keep_alive,
                                                            absl::Duration spin);
  ~TcpIoThread();

  // Serves the sockets of one more queue until Forget, after which the queue and this thread may be
  // destroyed.
  absl::Status LookAfter(std::shared_ptr<TcpSockets> sockets) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(const TcpSockets& sockets) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether to report when those sockets are ready.
  void Watch(const TcpSockets& sockets, bool wanted);
  // Ends its sleep, so that it checks when to take sockets back.
  void Wake();

 private:
  TcpIoThread(UniqueFd epoll, UniqueFd wake, absl::Duration keep_alive, absl::Duration spin);
  void Run();
  bool stopping() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits up to `timeout` and returns what is ready.
  int Await(absl::Duration timeout, std::array<epoll_event, 16>& events);
  void Serve(const epoll_event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns when to check next.
  absl::Duration TakeBack(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<TcpSockets>> All() const ABSL_LOCKS_EXCLUDED(mutex_);

  const UniqueFd epoll_;
  const UniqueFd wake_;
  const absl::Duration tick_;
  AdaptiveSpin spin_;  // used only by the thread

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, std::shared_ptr<TcpSockets>> sockets_ ABSL_GUARDED_BY(mutex_);  // by fd

  std::thread thread_;
};

}  // namespace shoal::transport
