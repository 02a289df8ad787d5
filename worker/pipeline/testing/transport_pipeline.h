// Links over transports between stages of one process, each with a transport of its own as in a
// process of its own. Messages of odd stages lie in memory of a device's choice, those of even ones
// in the transport's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "plan/schedule.h"
#include "transport/transport.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/pipeline/transport_links.h"

namespace shoal::worker {

class TransportPipeline {
 public:
  using MakeTransport = std::function<std::unique_ptr<transport::Transport>(int stage)>;

  TransportPipeline(int stages, const MakeTransport& make);

  // Links anew, for schedules of this shape, with memory for what `schedule` needs with messages of
  // that length.
  absl::Status Connect(const plan::Schedule& schedule, int64_t longest_message);

  TransportLinks& links(int stage) { return *links_[static_cast<size_t>(stage)]; }
  transport::Transport& transport(int stage) { return *transports_[static_cast<size_t>(stage)]; }

 private:
  const std::unique_ptr<Device> device_ = MakeCpuDevice();
  const std::unique_ptr<Memory> memory_ = device_->NewHostMemory(0);
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<TransportLinks>> links_;
};

}  // namespace shoal::worker
