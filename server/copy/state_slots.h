// The giving end of state that other servers read (state_link.h): for each of them memory of
// kReadsAtOnce slots, which ReadState fills and the reader then reads over a transport of the job.
//
// Thread-safe.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/transport.h"
#include "proto/server.pb.h"
#include "server/copy/state_copy.h"

namespace shoal::server {

// Connections of a job at a time: what is in memory for them is bounded.
inline constexpr size_t kMostStateSlots = 64;

class StateSlots {
 public:
  // By preference; they outlive it. `unavailable` says why others of the job are not among them.
  StateSlots(std::vector<transport::Transport*> transports, std::vector<std::string> unavailable);

  absl::StatusOr<proto::ConnectStateReply> Connect(const proto::ConnectStateRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads into the slot that the request names, which nobody else fills meanwhile, or into nothing
  // where the reader is not connected, or names a slot that is none.
  using Read = std::function<absl::StatusOr<proto::ReadStateReply>(std::span<std::byte> slot)>;
  absl::StatusOr<proto::ReadStateReply> Fill(const proto::ReadStateRequest& request,
                                             const Read& read) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Reader {  // destroyed from the end
    std::unique_ptr<transport::EventQueue> queue;
    std::shared_ptr<transport::Region> slots;
    std::array<absl::Mutex, kReadsAtOnce> filling;  // by slot
    std::unique_ptr<transport::Connection> connection;
  };
  static absl::StatusOr<std::string> Accept(transport::Transport& transport,
                                            const std::string& offer, const std::string& name,
                                            std::shared_ptr<Reader>& reader);
  void DropClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<transport::Transport*> transports_;
  const std::vector<std::string> unavailable_;
  mutable absl::Mutex mutex_;
  // By what each calls itself. A read that is under way keeps its own.
  std::map<std::string, std::shared_ptr<Reader>> readers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::server
