#include "worker/pipeline/links/testing/group.h"

#include <thread>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/registry/registry.h"

namespace shoal::worker {
namespace {

constexpr int64_t kLongestMessage = 4096;

StageGroup GroupOf(int stage, int stages) {
  StageGroup group{.job_id = "job-1", .group = 3, .stage = stage};
  for (int i = 0; i < stages; ++i) {
    group.workers.push_back(
        {.name = fmt::format("worker-{}", 10 + i), .incarnation = 1000 + static_cast<uint64_t>(i)});
  }
  return group;
}

}  // namespace

class TestingStage::Client final : public StageClient {
 public:
  Client(std::vector<TestingStage*>& stages, int from, const Spoil& spoil)
      : stages_(stages), from_(from), spoil_(spoil) {}

  absl::StatusOr<proto::ConnectStageReply> ConnectStage(int stage,
                                                        const proto::ConnectStageRequest& request,
                                                        absl::Duration) override {
    if (cancelled_) {
      return absl::CancelledError("cancelled");
    }
    auto reply = stages_[static_cast<size_t>(stage)]->service().ConnectStage(request);
    if (spoil_) {
      SHOAL_RETURN_IF_ERROR(spoil_(from_, request));
    }
    return reply;
  }
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      int worker, const proto::JoinRendezvousRequest& request, absl::Duration) override {
    return stages_[static_cast<size_t>(worker)]->service().JoinRendezvous(request);
  }
  void Cancel() override { cancelled_ = true; }

 private:
  std::vector<TestingStage*>& stages_;
  const int from_;
  const Spoil spoil_;
  std::atomic<bool> cancelled_ = false;
};

TestingStage::TestingStage(StageGroup group,
                           std::vector<std::unique_ptr<transport::Transport>> transports,
                           const std::string& preferred, std::vector<TestingStage*>& others,
                           const Spoil& spoil, const Patience& patience, bool on_device)
    : group_(std::move(group)),
      transports_(std::move(transports)),
      client_(std::make_unique<Client>(others, group_.stage, spoil)) {
  StageConnections::Options options{.group = group_,
                                    .preferred = preferred,
                                    .device = on_device ? &device_ : nullptr,
                                    .parting_patience = patience.parting};
  for (const auto& transport : transports_) {
    options.transports.push_back(transport.get());
  }
  connections_ = std::make_unique<StageConnections>(options, client_.get(), &service_);
  links_ = std::make_unique<GroupLinks>(group_.stage, kLongestMessage, patience.timeout,
                                        connections_.get());
}

TestingGroup::TestingGroup(const Options& options) {
  for (int i = 0; i < options.stages; ++i) {
    const auto& names =
        options.transports[std::min(static_cast<size_t>(i), options.transports.size() - 1)];
    std::vector<std::unique_ptr<transport::Transport>> transports;
    for (const std::string& name : names) {
      auto made = transport::CreateTransport(name);
      SHOAL_CHECK(made.ok());
      transports.push_back(options.wrap ? options.wrap(*std::move(made)) : *std::move(made));
    }
    stages_.push_back(std::make_unique<TestingStage>(
        GroupOf(i, options.stages), std::move(transports), options.transports.front().front(),
        pointers_, options.spoil, options.patience, options.on_devices));
  }
  for (const auto& stage : stages_) {
    pointers_.push_back(stage.get());
    stage->Open();
  }
}

std::vector<absl::Status> TestingGroup::Prepare(const StepAttempt& attempt,
                                                const plan::Schedule& schedule) {
  const std::vector<plan::MessageQueue> queues = plan::MessageQueues(schedule);
  std::vector<absl::Status> results(stages_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < stages_.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = stages_[i]->links().Prepare(attempt, queues); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

std::vector<StageLinks*> TestingGroup::links() {
  std::vector<StageLinks*> links;
  for (const auto& stage : stages_) {
    links.push_back(&stage->links());
  }
  return links;
}

}  // namespace shoal::worker
