// The thread of a shm transport. It answers dials, watches the socket kept open for each connection
// to notice the peer's end, and expires handshakes that are not completed. It moves no data, so it
// costs nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/refusal_log.h"
#include "core/transport/expected_handshakes.h"
#include "core/transport/shm/connection.h"
#include "core/transport/shm/handshake.h"

namespace shoal::transport {

// How long peers have to close GPU memory that is about to be freed: a driver may first wait for
// work on its GPU.
inline constexpr absl::Duration kPartingPatience = absl::Seconds(10);

class ShmService {
 public:
  static absl::StatusOr<std::unique_ptr<ShmService>> Start();
  ~ShmService();

  const std::string& listen_name() const { return listener_.name; }

  // Returns the secret with which a peer must dial for `connection`; closes the connection if it
  // does not in time.
  std::string Expect(std::shared_ptr<ShmConnectionState> connection, absl::Duration timeout);
  // Watches the socket of an open connection.
  void Watch(std::shared_ptr<ShmConnectionState> connection, UniqueFd socket);
  // Says goodbye to the peer and forgets the connection, whatever its state. Idempotent. Regions in
  // GPU memory that the peer may still have open are kept until it closes its socket, which it does
  // after closing them.
  void Leave(uint64_t connection);

 private:
  struct Dial {
    UniqueFd socket;
    absl::Time deadline;
  };
  struct Watched {
    UniqueFd socket;
    std::shared_ptr<ShmConnectionState> connection;
  };

  ShmService(ShmListener listener, UniqueFd epoll, UniqueFd wake);
  void Run();
  absl::Duration ExpireHandshakes() ABSL_LOCKS_EXCLUDED(mutex_);
  void AcceptDials() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerDial(uint64_t token) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Answer(UniqueFd socket, ShmMessage message) ABSL_LOCKS_EXCLUDED(mutex_);
  void HearFromPeer(uint64_t token) ABSL_LOCKS_EXCLUDED(mutex_);
  bool AddToEpoll(int fd, uint64_t token);
  void WakeThread();

  const ShmListener listener_;
  const UniqueFd epoll_;
  const UniqueFd wake_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // a dial, whose connection will be watched afterwards
  bool answering_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 2;              // 0 is the listener, 1 the wake-up
  std::map<uint64_t, Dial> dials_ ABSL_GUARDED_BY(mutex_);       // by token
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mutex_);  // by token

  RefusalLog refusals_{"shm: refused a dial"};       // has its own lock
  ExpectedHandshakes<ShmConnectionState> expected_;  // has its own lock

  std::thread thread_;
};

}  // namespace shoal::transport
