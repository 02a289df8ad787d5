// A worker that is told to leave before its job is made leaves at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/testing/fake_coordinator.h"
#include "client/grpc_server_client.h"
#include "core/base/file.h"
#include "core/base/metrics.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "fmt/format.h"
#include "tests/in_process/tiny_job.h"
#include "worker/job/trainer.h"

namespace shoal::testing {
namespace {

// A server that takes connections and says nothing.
class SilentServer {
 public:
  SilentServer() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_.get(), generic, size), 0);
    EXPECT_EQ(listen(socket_.get(), 16), 0);
    EXPECT_EQ(getsockname(socket_.get(), generic, &size), 0);
    address_ = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  const UniqueFd socket_;
  std::string address_;
};

// Has a job with one server.
class OneServerCoordinator final : public cli::FakeCoordinator {
 public:
  OneServerCoordinator(const plan::Job& job, const std::string& tokens, const std::string& server) {
    const std::vector<plan::PartitionSpec> partitions = plan::BuildPartitions(
        plan::BuildUnits(*formats::ReadModelSpec(job.model)), job.service.partition_bytes);
    join_.set_ready(true);
    *join_.mutable_job() = plan::ToMessage(job);
    join_.set_token_file(tokens);
    join_.set_workers(1);
    join_.add_servers()->set_address(server);
    join_.mutable_shard_map()->set_generation(1);
    for (size_t i = 0; i < partitions.size(); ++i) {
      join_.mutable_shard_map()->add_servers(0);
    }
  }
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest&) override {
    return join_;
  }

 private:
  proto::JoinJobReply join_;
};

using LeavingTest = TinyJobTest;

TEST_F(LeavingTest, InTheMiddleOfConnectingToServers) {
  const SilentServer silent;
  OneServerCoordinator coordinator(job_, tokens_, silent.address());
  Metrics metrics;
  worker::Trainer trainer(coordinator.Connect(), metrics);
  absl::Notification connecting;
  worker::WorkerJobOptions options;
  options.incarnation = 7;
  options.threads = 1;
  options.make_server_client = [&](const std::vector<std::string>& addresses) {
    connecting.Notify();
    return std::make_unique<client::GrpcServerClient>(addresses, rpc::Token::Generate());
  };
  absl::Status ended;
  std::thread run([&] { ended = trainer.Run(options); });
  connecting.WaitForNotification();
  absl::SleepFor(absl::Milliseconds(100));
  const absl::Time told = absl::Now();
  trainer.Stop(absl::UnavailableError("its lease is over"));
  run.join();
  EXPECT_EQ(ended, absl::UnavailableError("its lease is over"));
  // The client's patience is ten seconds.
  EXPECT_LT(absl::Now() - told, absl::Seconds(3));
}

}  // namespace
}  // namespace shoal::testing
