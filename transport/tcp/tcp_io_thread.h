// A thread that moves the bytes of its connections, each in turn, and asks silent peers whether
// they live.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/file.h"

namespace shoal::transport {

class TcpConnectionState;

// A peer is asked after one tick of silence, and taken for dead when all but one of these were
// silent.
inline constexpr int kTicksPerKeepAlive = 5;

class TcpIoThread {
 public:
  static absl::StatusOr<std::unique_ptr<TcpIoThread>> Start(absl::Duration keep_alive);
  ~TcpIoThread();

  // By connection id. Add starts with interest in arriving bytes alone.
  bool Add(uint64_t id, int socket, std::shared_ptr<TcpConnectionState> connection);
  void Remove(uint64_t id, int socket);
  void AwaitWritable(uint64_t id, int socket, bool wanted);

 private:
  TcpIoThread(UniqueFd epoll, UniqueFd wake, absl::Duration keep_alive);
  void Run();
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);

  const UniqueFd epoll_;
  const UniqueFd wake_;
  const absl::Duration tick_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<TcpConnectionState>> connections_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace shoal::transport
