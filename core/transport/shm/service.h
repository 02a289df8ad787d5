// The thread of a shm transport. It answers dials, watches the kept-open socket of each connection
// for the peer's end, and lets handshakes that are not completed expire. It moves no data, so an
// idle or a busy transport costs it nothing.
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
#include "core/transport/expected_handshakes.h"
#include "core/transport/refusal_log.h"
#include "core/transport/shm/connection.h"
#include "core/transport/shm/handshake.h"

namespace shoal::transport {

// For peers to close what they have open of a GPU's memory that goes: a driver may wait for what is
// on its GPU before it does.
inline constexpr absl::Duration kPartingPatience = absl::Seconds(10);

class ShmService {
 public:
  static absl::StatusOr<std::unique_ptr<ShmService>> Start();
  ~ShmService();

  const std::string& listen_name() const { return listener_.name; }

  // Expects a peer to dial for `connection` with the secret that this returns; closes the
  // connection when it does not in time.
  std::string Expect(std::shared_ptr<ShmConnectionState> connection, absl::Duration timeout);
  // Watches the socket of a connection that is open.
  void Watch(std::shared_ptr<ShmConnectionState> connection, UniqueFd socket);
  // Says goodbye to the peer and forgets the connection, whatever its state. Idempotent. Regions in
  // a GPU's memory that the peer may still have open stay until its socket is closed: it closes
  // them first.
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
  bool answering_ ABSL_GUARDED_BY(mutex_) = false;   // a dial, whose connection is watched after it
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 2;  // 0 is the listener, 1 the wake-up
  std::map<uint64_t, Dial> dials_ ABSL_GUARDED_BY(mutex_);       // by token
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mutex_);  // by token

  RefusalLog refusals_{"shm"};                       // has its own lock
  ExpectedHandshakes<ShmConnectionState> expected_;  // has its own lock

  std::thread thread_;
};

}  // namespace shoal::transport
