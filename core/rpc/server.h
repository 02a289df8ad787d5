// Serves a process's services over gRPC, with a bounded shutdown. Every method checks the token,
// and with TLS whether that role may call it (access.h), before anything is read of the request.
//
// What a peer without a token can take is bounded: a few KiB of each connection, connections as
// core/base/net/listener.h has it, and those on which nothing is asked are closed.
//
// Services are plain classes (CoordinatorService, ParameterServerService, StageService); nothing
// outside this folder sees gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/security.h"

namespace grpc {
class Service;
}

namespace shoal::rpc {

// Takes the events of a streaming method.
template <typename Event>
struct EventStream {
  std::function<bool(const Event&)> write;  // false once the watcher is gone
  std::function<bool()> gone;
};

// What a method returns that takes no thread while its call goes on: that is answered, with
// Unavailable, only when the server goes down. `on_end` runs once, when the call is over because of
// that, or since its caller or the connection is gone; it must not block for long.
template <typename Reply>
struct HeldCall {
  std::function<void()> on_end;
};

// A service behind gRPC: made by MakeCoordinatorService, MakeParameterServerService and
// MakeStageService.
class Service {
 public:
  virtual ~Service() = default;
  virtual grpc::Service* grpc_service() = 0;
  // Those under way, and later ones.
  virtual void EndHeldCalls() {}

  const Security& security() const { return security_; }
  void set_security(Security security) { security_ = std::move(security); }

 private:
  Security security_;
};

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0 picks a free one
  Security security;                   // its token must not be empty
  // Concurrent calls, each on a thread, long polls included; more are refused with
  // ResourceExhausted.
  int max_threads = 512;
  // Answers probes by the standard health service, which asks for no token: short connections
  // alone.
  bool health = false;
};

class Server {
 public:
  // Unavailable if the address cannot be bound; the message says what to change.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, std::vector<std::unique_ptr<Service>> services);
  ~Server();  // calls Shutdown(1 s) if nobody has

  int port() const;
  // Sets the health service's answer for what a probe names.
  void SetServing(const std::string& name, bool serving);
  // Refuses new calls and cancels running ones after `grace`. Blocks until all services have
  // returned: first wake any that waits for something other than its call. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shoal::rpc
