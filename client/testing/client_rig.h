// Servers, transports and a client in one process, for tests of the client.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/parameter_client.h"
#include "client/testing/fake_server.h"
#include "client/unit_layout.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/transport/transport.h"
#include "gtest/gtest.h"

namespace shoal::client {

// The job of its servers, and of clients that name none.
inline constexpr const char* kRigJob = "job-1";

struct RigOptions {
  int servers = 3;
  int64_t partition_bytes = 8 << 10;
  DType wire_type = DType::kF32;
  DType gradient_type = DType::kF32;
  int64_t slots = 4;
  std::string transport = "shm";
  int64_t generation = 5;
  std::set<int> frozen;      // units
  std::set<int> from_files;  // of those
  bool nf4 = false;          // the blocks that are frozen
  bool reserves_all = false;
  // Servers that have each partition: its primary and the next ones. With more than one it is read
  // from the last.
  int replicas = 1;
};

// By which that is so.
plan::ShardMap MapOf(const std::vector<plan::PartitionSpec>& partitions, const RigOptions& options);

class ClientRig {
 public:
  // `client_transport` may inject faults; null: a separate transport of the servers' kind.
  explicit ClientRig(const RigOptions& options,
                     std::unique_ptr<transport::Transport> client_transport = nullptr);

  // Sets incarnation and gradient type in `options`.
  absl::StatusOr<std::unique_ptr<ParameterClient>> NewClient(ClientOptions options = {});

  FakeServer& server(int index) { return *servers[static_cast<size_t>(index)]; }
  void Publish(int64_t version);
  void OpenAttempt(int64_t step, int64_t attempt);
  void HoldAcknowledgements(bool hold);
  // The sum over all servers.
  std::vector<int64_t> Sum(int unit);
  int64_t pushes();
  int units() const { return static_cast<int>(unit_specs.size()); }
  int64_t elements() const;  // of all units

  RigOptions options;
  std::vector<plan::UnitSpec> unit_specs;
  std::vector<plan::PartitionSpec> partitions;
  plan::ShardMap map;
  Layout layout;
  std::unique_ptr<transport::Transport> server_transport;
  std::unique_ptr<transport::Transport> client_transport;
  std::vector<std::unique_ptr<FakeServer>> servers;
  std::unique_ptr<FakeServers> server_client;
};

// The transports of this machine: includes verbs if it has a device.
std::vector<std::string> TransportsHere();

// Integers that differ by unit, element and push, so small that sums are exact in bf16 too.
std::vector<float> IntegerGradient(const plan::UnitSpec& unit, int seed);
// Grows `sum` to the gradient's size.
void Add(const std::vector<float>& gradient, std::vector<int64_t>& sum);

// Expects the weights that servers publish as `version` of a unit.
void ExpectWeights(const ParameterClient::View& view, DType type, int64_t version, int unit);
// `expected`: by unit, the sum over all servers.
void ExpectSums(ClientRig& rig, const std::vector<std::vector<int64_t>>& expected);

// Records returned gradients.
class Returns : public GradientReturn {
 public:
  void Returned(int unit, const void* gradient) override;
  // Returns false after ten seconds.
  bool WaitFor(size_t count);
  bool WaitForUnit(int unit);
  std::vector<int> units();
  std::set<const void*> gradients();

 private:
  absl::Mutex mutex_;
  std::vector<int> units_ ABSL_GUARDED_BY(mutex_);
  std::set<const void*> gradients_ ABSL_GUARDED_BY(mutex_);
};

// A test that runs over each of TransportsHere().
class TransportTest : public ::testing::TestWithParam<std::string> {
 protected:
  static RigOptions Options() { return {.transport = GetParam()}; }
};

}  // namespace shoal::client
