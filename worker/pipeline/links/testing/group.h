// The stages of one group in one process, for tests: services, handshakes and links; calls between
// them are function calls.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/transport/transport.h"
#include "worker/peers/stage_service.h"
#include "worker/pipeline/links/connect_stages.h"
#include "worker/pipeline/links/group_links.h"
#include "worker/pipeline/testing/sharing_device.h"

namespace shoal::worker {

// One stage with its transports, as in its own process.
class TestingStage {
 public:
  // The group fills `others`. If `spoil` returns an error, a call ends with it after it was made.
  using Spoil = std::function<absl::Status(int from, const proto::ConnectStageRequest& request)>;

  // How long a stage tries to connect.
  struct Patience {
    absl::Duration timeout = absl::Seconds(20);
    absl::Duration parting = absl::Seconds(10);
  };

  TestingStage(StageGroup group, std::vector<std::unique_ptr<transport::Transport>> transports,
               const std::string& preferred, std::vector<TestingStage*>& others, const Spoil& spoil,
               const Patience& patience, bool on_device);

  StageService& service() { return service_; }
  StageConnections& connections() { return *connections_; }
  GroupLinks& links() { return *links_; }
  const SharingDevice& device() const { return device_; }
  void Open() { service_.Open(group_); }

 private:
  class Client;

  const StageGroup group_;
  SharingDevice device_;
  const std::vector<std::unique_ptr<transport::Transport>> transports_;
  StageService service_{absl::Milliseconds(100)};
  std::unique_ptr<StageClient> client_;
  std::unique_ptr<StageConnections> connections_;
  std::unique_ptr<GroupLinks> links_;
};

class TestingGroup {
 public:
  struct Options {
    int stages = 2;
    // By stage; the last entry also stands for all later stages.
    std::vector<std::vector<std::string>> transports = {{"shm", "tcp"}};
    std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>
        wrap;
    TestingStage::Patience patience;
    TestingStage::Spoil spoil;
    bool on_devices = false;  // messages lie there, if transports say that they open their memory
  };
  // Opens all services.
  explicit TestingGroup(const Options& options);

  TestingStage& stage(int index) { return *stages_[static_cast<size_t>(index)]; }
  // Prepares all stages concurrently.
  std::vector<absl::Status> Prepare(const StepAttempt& attempt, const plan::Schedule& schedule);
  std::vector<StageLinks*> links();

 private:
  std::vector<TestingStage*> pointers_;
  std::vector<std::unique_ptr<TestingStage>> stages_;
};

}  // namespace shoal::worker
