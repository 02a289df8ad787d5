// The threads of a client: one for each transport in use, which takes the session's turns of it,
// and one that makes connections again.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/session.h"
#include "core/base/clock.h"

namespace shoal::client {

class SessionThreads {
 public:
  // Session and clock outlive it.
  SessionThreads(Session* session, size_t transports, Clock& clock)
      : session_(*session), clock_(clock), io_(transports) {}
  ~SessionThreads();
  SessionThreads(const SessionThreads&) = delete;
  SessionThreads& operator=(const SessionThreads&) = delete;

  // Starts the session and what serves it.
  absl::Status Start();

 private:
  void RunIo(size_t transport);

  Session& session_;
  Clock& clock_;
  std::vector<std::thread> io_;  // by transport; each starts when a link first uses it
  std::thread reconnect_;
};

}  // namespace shoal::client
