// A test of a cluster of two servers whose partitions change places.
#pragma once

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "server/service/testing/client.h"
#include "server/service/testing/freezes.h"

namespace shoal::server {

class MovesTest : public FreezesTest {
 protected:
  using Holders = std::vector<std::vector<int>>;  // partitions, by server

  static Holders HoldersOf(const TestingCluster& cluster) {
    return {plan::PartitionsOf(cluster.shard_map(), 0), plan::PartitionsOf(cluster.shard_map(), 1)};
  }
  static proto::ReserveRequest Reserve(int64_t generation, const std::vector<int>& partitions) {
    auto request = OfTestingJob<proto::ReserveRequest>();
    request.set_generation(generation);
    request.mutable_partitions()->Assign(partitions.begin(), partitions.end());
    return request;
  }
  static proto::FetchRequest Fetch(int64_t generation, int64_t version, int from,
                                   const std::vector<int>& partitions) {
    auto request = OfTestingJob<proto::FetchRequest>();
    request.set_generation(generation);
    request.set_version(version);
    proto::PartitionSource& source = *request.add_sources();
    source.set_address(std::to_string(from));
    source.mutable_partitions()->Assign(partitions.begin(), partitions.end());
    return request;
  }
  // Each with what it holds.
  static absl::Status Begin(TestingCluster& cluster, int64_t step, int64_t attempt,
                            int64_t generation, const Holders& holders) {
    for (int server = 0; server < cluster.servers(); ++server) {
      auto request = OfTestingJob<proto::BeginAttemptRequest>();
      request.set_step(step);
      request.set_attempt(attempt);
      request.set_generation(generation);
      const std::vector<int>& held = holders[static_cast<size_t>(server)];
      request.mutable_held()->mutable_partitions()->Assign(held.begin(), held.end());
      SHOAL_RETURN_IF_ERROR(cluster.service(server).BeginAttempt(request).status());
    }
    return absl::OkStatus();
  }
  // Over a client that is connected: one to each of these that trains.
  static void PushOver(TestingClient& client, const TestingCluster& cluster, int64_t step,
                       int64_t attempt, const std::vector<int>& partitions) {
    for (const int id : partitions) {
      if (cluster.partitions()[static_cast<size_t>(id)].frozen) {
        continue;
      }
      EXPECT_EQ(client.SendAndWait({.partition = id,
                                    .step = step,
                                    .attempt = attempt,
                                    .gradient = cluster.Gradient(1, step, 1, id)}),
                (TestingClient::Answer{}));
    }
  }
  // All pushes of a step that is open, to who holds the partitions, and its commit.
  static void Train(TestingCluster& cluster, int64_t step, int64_t attempt, int64_t generation,
                    const Holders& holders) {
    for (int server = 0; server < cluster.servers(); ++server) {
      TestingClient client(&cluster.service(server), &cluster.client_transport(), 1, generation);
      ASSERT_OK(client.Connect());
      for (const int id : holders[static_cast<size_t>(server)]) {
        const plan::PartitionSpec& spec = cluster.partitions()[static_cast<size_t>(id)];
        ASSERT_OK(client.Read(id, spec.frozen ? 0 : step - 1, 4 * spec.count).status());
      }
      PushOver(client, cluster, step, attempt, holders[static_cast<size_t>(server)]);
    }
    ASSERT_OK(cluster.Prepare(step, attempt).status());
    ASSERT_OK(cluster.Commit(step, attempt));
  }
  // Of partitions from one server to the other, and the step that begins with them there.
  static void Move(TestingCluster& cluster, int from, const std::vector<int>& moved, int64_t step,
                   int64_t generation, Holders& holders) {
    ParameterService& to = cluster.service(1 - from);
    const auto reserved = to.Reserve(Reserve(generation, moved));
    ASSERT_OK(reserved.status());
    EXPECT_GT(reserved->bytes(), 0);
    const auto fetched = to.Fetch(Fetch(generation, step - 1, from, moved));
    ASSERT_OK(fetched.status());
    int64_t bytes = 0;
    for (const int id : moved) {
      bytes += cluster.partitions()[static_cast<size_t>(id)].moved_bytes();
      std::erase(holders[static_cast<size_t>(from)], id);
      holders[static_cast<size_t>(1 - from)].push_back(id);
    }
    EXPECT_EQ(fetched->bytes(), bytes);
    // Repeated, as when an answer is lost.
    EXPECT_EQ(to.Reserve(Reserve(generation, moved))->bytes(), reserved->bytes());
    EXPECT_EQ(to.Fetch(Fetch(generation, step - 1, from, moved))->bytes(), fetched->bytes());
    ASSERT_OK(Begin(cluster, step, 1, generation, holders));
    ASSERT_OK(Begin(cluster, step, 1, generation, holders));
  }

  // Bytes that server 0 says it has, by kind.
  static std::map<std::string, int64_t> Resident(const TestingCluster& cluster) {
    const std::string gauge = "shoal_ps_resident_bytes{kind=\"";
    std::istringstream text(cluster.MetricsText(0));
    std::map<std::string, int64_t> bytes;
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with(gauge)) {
        const size_t end = line.find('"', gauge.size());
        bytes[line.substr(gauge.size(), end - gauge.size())] =
            static_cast<int64_t>(std::stod(line.substr(line.find(' '))));
      }
    }
    EXPECT_EQ(bytes.size(), 4U);
    return bytes;
  }
  static int64_t Total(const std::map<std::string, int64_t>& bytes) {
    int64_t total = 0;
    for (const auto& [kind, some] : bytes) {
      total += some;
    }
    return total;
  }

  const TemporaryFolder folder_;
};

}  // namespace shoal::server
