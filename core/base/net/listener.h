// Listens on a TCP port and hands connections over, as long as the process has descriptors to spare
// for them (descriptors.h): those beyond are closed at once, with a line in the log.
//
// gRPC's own would stop listening forever the first time that there is no descriptor left.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "core/base/refusal_log.h"

namespace shoal {

class Listener {
 public:
  // HOST:PORT; port 0 picks a free one. On all addresses of the host; a wildcard is that of IPv4
  // and IPv6 both, where the machine has both. An error says what to change.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address);
  ~Listener();  // calls Stop
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // Whether processes of this machine alone can connect.
  bool is_local() const { return is_local_; }
  // Hands nonblocking connections to `take`, on a thread of its own. Once.
  void Start(std::function<void(UniqueFd connection)> take);
  // After it `take` is not called, and nobody listens. Idempotent.
  void Stop();

 private:
  Listener(std::vector<UniqueFd> sockets, UniqueFd stop, int port, bool is_local);
  void Run();
  // Of those that wait at a socket. False where there is no descriptor for one.
  bool TakeWaiting(int socket);

  std::vector<UniqueFd> sockets_;
  const UniqueFd stop_;  // readable: end
  const int port_;
  const bool is_local_;
  std::function<void(UniqueFd)> take_;
  RefusalLog refusals_{"refused a connection"};
  std::thread thread_;
};

}  // namespace shoal
