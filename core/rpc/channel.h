// A connection to one peer's gRPC service, made lazily and kept: the token it presents, the calls
// in flight. Typed clients (coordinator_client.h, parameter_server_client.h, stage_client.h) are
// made over it. Thread-safe.
//
// Every call has a deadline, and its error names the peer and the method: "coordinator at
// 127.0.0.1:4000: Register: ...".
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/rpc/token.h"

namespace shoal::rpc {

struct CallOptions {
  absl::Duration deadline = absl::Seconds(10);
  // Waits (within the deadline) for a peer that cannot be reached yet, instead of failing at once
  // with Unavailable.
  bool wait_for_connection = false;
};

class Channel {
 public:
  // `target` is HOST:PORT; `peer` is how messages call the other side, e.g. "server-1". Does not
  // connect yet.
  static std::shared_ptr<Channel> Create(const std::string& target, Token token,
                                         const std::string& peer);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const std::string& target() const { return target_; }
  // "server-1 at 127.0.0.1:4001"
  const std::string& description() const { return description_; }

  // Calls in flight end with Cancelled, and so do later ones: what a process does to leave without
  // waiting for a peer.
  void Cancel();

  struct State;  // core/rpc/internal_call.h
  State& state() { return *state_; }

 private:
  Channel(const std::string& target, Token token, const std::string& peer);
  std::string target_;
  std::string description_;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::rpc
