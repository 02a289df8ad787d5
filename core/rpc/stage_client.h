// Calls from a worker to another one, with deadline, token and errors that name it.
// Thread-safe; calls block their thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/rpc/channel.h"
#include "proto/worker.pb.h"

namespace shoal::rpc {

class StageClient {
 public:
  explicit StageClient(std::shared_ptr<Channel> channel);
  ~StageClient();

  // May wait at the other stage until that comes to the same attempt: the deadline in `options`
  // says how long.
  absl::StatusOr<proto::ConnectStageReply> ConnectStage(const proto::ConnectStageRequest& request,
                                                        const CallOptions& options);
  // Likewise, until all others have called.
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      const proto::JoinRendezvousRequest& request, const CallOptions& options);

  Channel& channel() { return *channel_; }

 private:
  struct Stub;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace shoal::rpc
