// A thread that moves the bytes of its connections, each in turn, and asks silent peers whether
// they live.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/file.h"
#include "transport/adaptive_spin.h"

namespace shoal::transport {

class TcpConnectionState;

// A peer is asked after one tick of silence, and taken for dead when all but one of these were
// silent.
inline constexpr int kTicksPerKeepAlive = 5;

class TcpIoThread {
 public:
  // `spin`: how long it looks for more, yielding the core between looks, before it sleeps. An
  // answer often follows within that, and a wake-up costs more than most answers.
  static absl::StatusOr<std::unique_ptr<TcpIoThread>> Start(absl::Duration keep_alive,
                                                            absl::Duration spin);
  ~TcpIoThread();

  // By connection id. Add starts with interest in arriving bytes alone.
  bool Add(uint64_t id, int socket, std::shared_ptr<TcpConnectionState> connection);
  void Remove(uint64_t id, int socket);
  void AwaitWritable(uint64_t id, int socket, bool wanted);

 private:
  TcpIoThread(UniqueFd epoll, UniqueFd wake, absl::Duration keep_alive, absl::Duration spin);
  void Run();
  // True when the thread is to end.
  bool Serve(const epoll_event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);

  const UniqueFd epoll_;
  const UniqueFd wake_;
  const absl::Duration tick_;
  AdaptiveSpin spin_;  // the thread's own

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<TcpConnectionState>> connections_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace shoal::transport
