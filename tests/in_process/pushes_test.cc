// Very many pushes from parameter clients to parameter servers, with delayed, reordered, lost and
// repeated doorbells at both ends, and connections that either end breaks, so that pushes whose
// acknowledgement was lost are sent again; and with payloads that are damaged on the way. Gradients
// are integers, so every sum is exact, whatever the order, and what was lost, counted twice or
// changed shows.
//
//   SHOAL_PUSHES      how many, over both workers and all partitions; about 20,000 without it
//   SHOAL_TRANSPORTS  over what, "shm,tcp"; all that this machine has without it
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <thread>

#include "absl/strings/str_split.h"
#include "client/parameter_client.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/fault_transport.h"
#include "core/transport/verbs/testing/fake_verbs.h"
#include "core/transport/verbs/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::testing {
namespace {

constexpr int kServers = 2;
constexpr uint64_t kWorkers = 2;
constexpr int64_t kPartitionBytes = 2 << 10;  // small: it is pushes that count, not bytes

int64_t WantedPushes() {
  const char* wanted = std::getenv("SHOAL_PUSHES");
  return wanted != nullptr ? std::atoll(wanted) : 20000;
}

std::vector<std::string> WantedTransports() {
  const char* wanted = std::getenv("SHOAL_TRANSPORTS");
  if (wanted == nullptr) {
    return transport::TransportNames();
  }
  return absl::StrSplit(wanted, ',');
}

transport::FaultOptions Faults(uint64_t seed, int64_t break_after_operations) {
  return {.seed = seed,
          .delay_probability = 0.01,
          .max_delay = absl::Milliseconds(1),
          .reorder = true,
          .drop_doorbell_probability = 0.001,
          .repeat_doorbell_probability = 0.05,
          .break_after_operations = break_after_operations};
}

// Verbs on a fake device where the machine has none.
std::unique_ptr<transport::Transport> NewTransport(const std::string& name) {
  static transport::FakeFabric fabric({.seed = 1});
  static int hosts = 0;
  auto made = transport::CreateTransport(name);
  if (!made.ok() && name == "verbs") {
    const std::string address = fmt::format("10.0.0.{}", ++hosts);
    made = transport::CreateVerbsTransport(
        {}, fabric.AddHost({transport::FakeDevice::Ethernet("mlx5_0", address)}));
  }
  EXPECT_TRUE(made.ok()) << Describe(made.status());
  return *std::move(made);
}

// Calls the servers where gRPC would.
class DirectServerClient final : public client::ServerClient {
 public:
  explicit DirectServerClient(server::TestingCluster* cluster) : cluster_(cluster) {}
  absl::StatusOr<proto::ConnectReply> Connect(int server, const proto::ConnectRequest& request,
                                              absl::Duration /*timeout*/) override {
    if (cancelled_) {
      return absl::CancelledError("cancelled");
    }
    return cluster_->service(server).Connect(request);
  }
  void Cancel() override { cancelled_ = true; }

 private:
  server::TestingCluster* const cluster_;
  std::atomic<bool> cancelled_ = false;
};

int64_t Value(uint64_t worker, int64_t round, int unit, int64_t element) {
  return (element * 13 + unit * 7 + round * 5 + static_cast<int64_t>(worker) * 3) % 9 - 4;
}

std::vector<float> Gradient(uint64_t worker, int64_t round, const plan::UnitSpec& unit) {
  std::vector<float> gradient(static_cast<size_t>(unit.count));
  for (int64_t i = 0; i < unit.count; ++i) {
    gradient[static_cast<size_t>(i)] = static_cast<float>(Value(worker, round, unit.index, i));
  }
  return gradient;
}

// One worker's pushes of one step, from first to last.
class PushingWorker {
 public:
  PushingWorker(server::TestingCluster* cluster, std::unique_ptr<transport::Transport> transport,
                uint64_t incarnation, bool verify)
      : cluster_(cluster),
        units_(plan::BuildUnits(cluster->spec())),
        incarnation_(incarnation),
        verify_(verify),
        servers_(cluster),
        transport_(std::move(transport)) {}

  absl::Status Run(int64_t rounds) {
    SHOAL_ASSIGN_OR_RETURN(
        const auto client,
        client::ParameterClient::Create({.job_id = server::kTestingJob,
                                         .incarnation = incarnation_,
                                         .name = fmt::format("worker-{}", incarnation_),
                                         .verify_pushes = verify_,
                                         .reconnect_delay = absl::Milliseconds(1),
                                         .rescan_interval = absl::Milliseconds(5)},
                                        units_, cluster_->partitions(), cluster_->shard_map(),
                                        kServers, &servers_, {transport_.get()}));
    SHOAL_RETURN_IF_ERROR(client->BeginStep(1, 1, cluster_->shard_map().generation));
    // The values repeat after nine rounds.
    std::vector<std::vector<float>> gradients;
    for (int64_t round = 0; round < rounds; ++round) {
      for (const plan::UnitSpec& unit : units_) {
        if (round < 9) {
          gradients.push_back(Gradient(incarnation_, round, unit));
        }
        const size_t index =
            static_cast<size_t>(round % 9) * units_.size() + static_cast<size_t>(unit.index);
        SHOAL_RETURN_IF_ERROR(
            client->Push(unit.index, gradients[index],
                         {.key = static_cast<int64_t>(incarnation_ - 1) * rounds + round + 1}));
      }
    }
    SHOAL_ASSIGN_OR_RETURN(acknowledged_, client->Finish(absl::Minutes(1)));
    statistics_ = client->statistics();
    return absl::OkStatus();
  }

  uint64_t incarnation() const { return incarnation_; }
  const std::vector<int64_t>& acknowledged() const { return acknowledged_; }  // by server
  const client::ClientStatistics& statistics() const { return statistics_; }

 private:
  server::TestingCluster* const cluster_;
  const std::vector<plan::UnitSpec> units_;
  const uint64_t incarnation_;
  const bool verify_;
  DirectServerClient servers_;
  const std::unique_ptr<transport::Transport> transport_;
  std::vector<int64_t> acknowledged_;
  client::ClientStatistics statistics_;
};

// By partition: the sum of the squares of what all rounds of all workers add up to.
std::vector<double> ExpectedSquares(const server::TestingCluster& cluster, int64_t rounds) {
  std::vector<double> squares;
  for (const plan::PartitionSpec& spec : cluster.partitions()) {
    int64_t sum_of_squares = 0;
    for (int64_t element = spec.offset; element < spec.offset + spec.count; ++element) {
      int64_t sum = 0;
      for (uint64_t worker = 1; worker <= kWorkers; ++worker) {
        for (int64_t round = 0; round < std::min<int64_t>(rounds, 9); ++round) {
          const int64_t repeats = (rounds - round + 8) / 9;
          sum += repeats * Value(worker, round, spec.unit, element);
        }
      }
      sum_of_squares += sum * sum;
    }
    squares.push_back(static_cast<double>(sum_of_squares));
  }
  return squares;
}

class PushesTest : public ::testing::TestWithParam<std::string> {
 protected:
  ~PushesTest() override { std::filesystem::remove_all(folder_); }

  // Has `rounds` rounds pushed by all workers, each over a transport with these faults. Returns the
  // totals of what their clients count.
  client::ClientStatistics Push(server::TestingCluster& cluster, int64_t rounds, bool verify,
                                const std::function<transport::FaultOptions(uint64_t)>& faults) {
    std::vector<std::unique_ptr<PushingWorker>> workers;
    std::vector<absl::Status> statuses(kWorkers);
    std::vector<std::thread> threads;
    for (uint64_t w = 0; w < kWorkers; ++w) {
      auto transport = transport::MakeFaultTransport(NewTransport(GetParam()), faults(w + 1));
      workers.push_back(
          std::make_unique<PushingWorker>(&cluster, std::move(transport), w + 1, verify));
      threads.emplace_back([&, w] { statuses[w] = workers[w]->Run(rounds); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    client::ClientStatistics totals;
    for (uint64_t w = 0; w < kWorkers; ++w) {
      EXPECT_TRUE(statuses[w].ok()) << Describe(statuses[w]);
      const std::vector<int64_t>& acknowledged = workers[w]->acknowledged();
      EXPECT_EQ(std::accumulate(acknowledged.begin(), acknowledged.end(), int64_t{0}),
                rounds * std::ssize(cluster.partitions()));
      const client::ClientStatistics& statistics = workers[w]->statistics();
      totals.reconnects += statistics.reconnects;
      totals.resent += statistics.resent;
      totals.duplicates += statistics.duplicates;
      totals.found_by_scan += statistics.found_by_scan;
    }
    return totals;
  }
  // Over connections that damage what passes; each time that is found a push is sent again.
  void PushDamaged(const transport::FaultOptions& faults, bool verify, bool found);

  const std::string folder_ = ::testing::TempDir() + "pushes-" + SecureToken();
};

// Rounds that make at least that many pushes.
int64_t RoundsFor(const server::TestingCluster& cluster, int64_t pushes) {
  const auto each = std::ssize(cluster.partitions()) * static_cast<int64_t>(kWorkers);
  return (pushes + each - 1) / each;
}

// By partition: the sum of the squares of what the servers have added up; each push counted once.
std::vector<double> Squares(server::TestingCluster& cluster, int64_t rounds) {
  const auto gradients = cluster.Prepare(1, 1);
  EXPECT_TRUE(gradients.ok()) << Describe(gradients.status());
  EXPECT_THAT(gradients->pushes(), ::testing::Each(static_cast<int64_t>(kWorkers) * rounds));
  return {gradients->sums_of_squares().begin(), gradients->sums_of_squares().end()};
}

TEST_P(PushesTest, CountOnceOverRepeatsDelaysReorderingLostDoorbellsAndReconnects) {
  if (const auto made = transport::CreateTransport(GetParam()); !made.ok()) {
    GTEST_SKIP() << Message(made.status());
  }
  uint64_t next_seed = 100;
  server::TestingCluster cluster(
      folder_, kServers, plan::Accumulate::kFloat, kPartitionBytes,
      {.name = GetParam(), .wrap_server = [&](std::unique_ptr<transport::Transport> inner) {
         // An acknowledgement is one operation.
         return transport::MakeFaultTransport(std::move(inner), Faults(next_seed++, 1500));
       }});
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  const int64_t rounds = RoundsFor(cluster, WantedPushes());
  // A push is two operations.
  const client::ClientStatistics faults =
      Push(cluster, rounds, /*verify=*/false, [](uint64_t worker) { return Faults(worker, 4000); });
  EXPECT_EQ(Squares(cluster, rounds), ExpectedSquares(cluster, rounds));
  // The faults took place.
  EXPECT_GT(faults.reconnects, 0);
  EXPECT_GT(faults.found_by_scan, 0);
  EXPECT_GT(faults.duplicates, 0);
  std::cout << fmt::format(
      "{} rounds over {}: {} reconnects, {} sent again, {} duplicates at the servers, {} found "
      "without their doorbell\n",
      rounds, GetParam(), faults.reconnects, faults.resent, faults.duplicates,
      faults.found_by_scan);
}

void PushesTest::PushDamaged(const transport::FaultOptions& faults, bool verify, bool found) {
  server::TestingCluster cluster(
      folder_, kServers, plan::Accumulate::kFloat, kPartitionBytes,
      {.name = "tcp", .wrap_server = [](const auto&) { return NewTransport(GetParam()); }});
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  const int64_t rounds = RoundsFor(cluster, 2000);
  const client::ClientStatistics totals =
      Push(cluster, rounds, verify, [&](uint64_t) { return faults; });
  if (found) {
    EXPECT_EQ(Squares(cluster, rounds), ExpectedSquares(cluster, rounds));
    EXPECT_GE(totals.reconnects, 4);
  } else {
    EXPECT_NE(Squares(cluster, rounds), ExpectedSquares(cluster, rounds));
    EXPECT_EQ(totals.reconnects, 0);
  }
}

TEST_P(PushesTest, WhatIsDamagedOnTheWayIsFoundWhereItIsLookedForAndSentAgain) {
  const transport::FaultOptions payloads = {.damage_payload = 100};  // of each connection
  ASSERT_NO_FATAL_FAILURE(PushDamaged(payloads, /*verify=*/true, /*found=*/true));
  ASSERT_NO_FATAL_FAILURE(PushDamaged(payloads, /*verify=*/false, /*found=*/false));
}

TEST_P(PushesTest, AHeaderThatIsDamagedOnTheWayIsSentAgain) {
  PushDamaged({.damage_header = 100}, /*verify=*/false, /*found=*/true);
}

INSTANTIATE_TEST_SUITE_P(Transports, PushesTest, ::testing::ValuesIn(WantedTransports()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shoal::testing
