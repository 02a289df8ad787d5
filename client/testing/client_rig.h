// Servers, transports and a client in one process, for tests of the client.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/parameter_client.h"
#include "client/testing/fake_server.h"
#include "client/unit_layout.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/transport/transport.h"

namespace shoal::client {

// Of its servers, and of the clients that name none.
inline constexpr const char* kRigJob = "job-1";

struct RigOptions {
  int servers = 3;
  int64_t partition_bytes = 8 << 10;
  DType wire_type = DType::kF32;
  DType gradient_type = DType::kF32;
  int64_t slots = 4;
  std::string transport = "shm";
  int64_t generation = 5;
};

class ClientRig {
 public:
  // `client_transport` null: a transport of that kind of its own. It may be one that injects
  // faults.
  explicit ClientRig(const RigOptions& options,
                     std::unique_ptr<transport::Transport> client_transport = nullptr);

  // Options are completed with incarnation and gradient type.
  absl::StatusOr<std::unique_ptr<ParameterClient>> NewClient(ClientOptions options = {});

  FakeServer& server(int index) { return *servers[static_cast<size_t>(index)]; }
  void Publish(int64_t version);
  void OpenAttempt(int64_t step, int64_t attempt);
  // The sum at all servers together.
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

// Those of the transports that this machine has: verbs where there is a device for it.
std::vector<std::string> TransportsHere();

// Integers that differ by unit, element and push, small enough that sums stay exact in bf16 too.
std::vector<float> IntegerGradient(const plan::UnitSpec& unit, int seed);

}  // namespace shoal::client
