// What moves weights and gradients between simulated processes: a transport
// (core/transport/transport.h) whose reads and writes take place in the loop's time, each post as a
// message of the link between two processes, with its faults. What was posted is on its way even
// when the process that posted it ends. A connection breaks where a message is lost, and with a
// process; one that is frozen is read and written all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/transport.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_process.h"

namespace shoal::simulation {

class SimLink;

// Zeroed, and cheaper than asking the kernel.
absl::StatusOr<std::shared_ptr<std::byte>> AllocatePages(int64_t bytes);

class SimFabric {
 public:
  explicit SimFabric(SimContext& context) : context_(context) {}

  // `turn` runs in the process after something has come for it; `overlooked`, when a doorbell to it
  // was lost. The transport goes before the process's end, or with it.
  std::unique_ptr<transport::Transport> MakeTransport(SimProcess& process,
                                                      std::function<void()> turn,
                                                      std::function<void()> overlooked);
  // That process ends: its peers hear of it, and nothing of it is touched any more.
  void Break(int process);

 private:
  friend class SimTransport;

  SimContext& context_;
  uint64_t next_id_ = 0;
  std::map<std::string, std::shared_ptr<SimLink>> offered_;  // by offer, until one accepts
  std::vector<std::weak_ptr<SimLink>> links_;
};

}  // namespace shoal::simulation
