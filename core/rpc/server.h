// A gRPC server for the services of one process, with the standard health service, a token check
// that every method of ours passes through (health alone is open, for probes), and a bounded
// shutdown.
//
// Services are plain classes (CoordinatorService, ParameterServerService); nothing outside of this
// folder sees gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/token.h"

namespace grpc {
class Service;
}

namespace shoal::rpc {

// A service behind gRPC: made by MakeCoordinatorService and MakeParameterServerService.
class Service {
 public:
  virtual ~Service() = default;
  virtual grpc::Service* grpc_service() = 0;

  const Token& token() const { return token_; }
  void set_token(Token token) { token_ = std::move(token); }

 private:
  Token token_;
};

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0 picks a free one
  Token token;                         // must not be empty
  // Calls that run at once, each on a thread; more are refused with ResourceExhausted. Long polls
  // count.
  int max_threads = 512;
};

class Server {
 public:
  // Unavailable, in one line that says what to change, when the address cannot be had.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, std::vector<std::unique_ptr<Service>> services);
  ~Server();  // Shutdown(1 s) if it was not called

  int port() const { return port_; }
  // What the health service answers (serving after Start).
  void SetServing(bool serving);
  // Takes no new calls, lets those running finish, and cancels them after `grace`. Returns when all
  // services have returned: one that waits for something else than its call must be woken before.
  // Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  int port_ = 0;
};

}  // namespace shoal::rpc
