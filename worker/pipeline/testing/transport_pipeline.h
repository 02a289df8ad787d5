// Links over transports between stages of one process, each with its own transport as in its own
// process. Messages lie on the host, for odd stages in memory of a device's choice and for even
// ones in the transport's, or on devices (here the CPU's, for transports that expose any memory).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/schedule/schedule.h"
#include "core/transport/transport.h"
#include "worker/backend/backend.h"
#include "worker/pipeline/links/transport_links.h"

namespace shoal::worker {

class TransportPipeline {
 public:
  using MakeTransport = std::function<std::unique_ptr<transport::Transport>(int stage)>;

  TransportPipeline(int stages, const MakeTransport& make, bool on_devices = false);

  // Recreates the links for schedules of this shape, with memory for what `schedule` needs with
  // messages of that length.
  absl::Status Connect(const plan::Schedule& schedule, int64_t longest_message);

  TransportLinks& links(int stage) { return *links_[static_cast<size_t>(stage)]; }
  transport::Transport& transport(int stage) { return *transports_[static_cast<size_t>(stage)]; }

 private:
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Memory> host_;
  const bool on_devices_;
  LentMemory lent_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<TransportLinks>> links_;
};

}  // namespace shoal::worker
