// The taking end of state that comes from another server: what ReadState puts into a slot over
// there is read from it over the job's transports. While there is no connection it comes in the
// answer, by gRPC: a transport holds no state up.
//
// Thread-safe: each thread that calls reads one piece, kReadsAtOnce of them at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/transport/transport.h"
#include "proto/server.pb.h"

namespace shoal::server {

// Calls of one server. Thread-safe.
struct GiverCalls {
  std::function<absl::StatusOr<proto::ReadStateReply>(const proto::ReadStateRequest&)> read;
  std::function<absl::StatusOr<proto::ConnectStateReply>(const proto::ConnectStateRequest&)>
      connect;
};

class StateLink {
 public:
  struct Options {
    std::string giver;   // for messages
    std::string reader;  // this server, for messages there
    std::string job_id;
    int64_t run = 0;
    std::vector<transport::Transport*> transports;  // by preference; they outlive the link
    Clock* clock = &RealClock();
  };
  StateLink(Options options, GiverCalls calls);
  ~StateLink();

  // As StateReader has it; at most kMostStateElements.
  absl::Status Read(const proto::ReadStateRequest& request, std::span<float> out)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Slots;  // of one connection

  // Null: not connected, or one call is just about it.
  std::shared_ptr<Slots> FindOrConnect() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next connection is made some time later, each time twice as long.
  void Rest(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const std::shared_ptr<Slots>& slots, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const GiverCalls calls_;
  absl::Mutex mutex_;
  std::shared_ptr<Slots> slots_ ABSL_GUARDED_BY(mutex_);  // null: not connected
  bool connecting_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time connected_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // when it was, last
  absl::Time try_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration rest_ ABSL_GUARDED_BY(mutex_);  // after the next failure
};

}  // namespace shoal::server
