#include "client/testing/client_rig.h"

#include <algorithm>

#include "core/base/bf16.h"
#include "core/base/check.h"
#include "core/transport/registry/registry.h"

namespace shoal::client {
namespace {

std::unique_ptr<transport::Transport> NewTransport(const std::string& name) {
  auto made = transport::CreateTransport(name);
  SHOAL_CHECK(made.ok());
  return *std::move(made);
}

std::vector<plan::UnitSpec> UnitsOf(const RigOptions& options) {
  std::vector<plan::UnitSpec> units = plan::BuildUnits(*plan::NamedShape("tiny"));
  for (plan::UnitSpec& unit : units) {
    unit.frozen = options.frozen.contains(unit.index);
    unit.nf4 = options.nf4 && unit.frozen && unit.kind == plan::UnitKind::kBlock;
    unit.from_files = options.from_files.contains(unit.index);
  }
  return units;
}

}  // namespace

plan::ShardMap MapOf(const std::vector<plan::PartitionSpec>& partitions,
                     const RigOptions& options) {
  plan::ShardMap map = plan::PlaceShards(partitions, options.servers, options.generation);
  for (plan::Holders& holders : map.servers) {
    while (std::ssize(holders) < options.replicas) {
      holders.push_back((holders.back() + 1) % options.servers);
    }
    if (options.replicas > 1) {
      map.readers.push_back(holders.back());
    }
  }
  return map;
}

ClientRig::ClientRig(const RigOptions& rig_options, std::unique_ptr<transport::Transport> transport)
    : options(rig_options),
      unit_specs(UnitsOf(options)),
      partitions(plan::BuildPartitions(unit_specs, options.partition_bytes)),
      map(MapOf(partitions, options)),
      layout(*MakeLayout(unit_specs, partitions, map, options.servers)),
      server_transport(NewTransport(options.transport)),
      client_transport(transport != nullptr ? std::move(transport)
                                            : NewTransport(options.transport)) {
  std::vector<FakeServer*> all;
  for (int i = 0; i < options.servers; ++i) {
    servers.push_back(
        std::make_unique<FakeServer>(FakeServer::Options{.job_id = kRigJob,
                                                         .index = i,
                                                         .wire_type = options.wire_type,
                                                         .gradient_type = options.gradient_type,
                                                         .slots = options.slots,
                                                         .reserves_all = options.reserves_all},
                                     &layout, server_transport.get()));
    all.push_back(servers.back().get());
  }
  server_client = std::make_unique<FakeServers>(all);
}

absl::StatusOr<std::unique_ptr<ParameterClient>> ClientRig::NewClient(ClientOptions with) {
  with.job_id = with.job_id.empty() ? kRigJob : with.job_id;
  with.incarnation = with.incarnation == 0 ? 77 : with.incarnation;
  with.gradient_type = options.gradient_type;
  return ParameterClient::Create(with, unit_specs, partitions, map, options.servers,
                                 server_client.get(), {client_transport.get()});
}

std::vector<std::string> TransportsHere() {
  std::vector<std::string> names = transport::TransportNames();
  std::erase_if(names,
                [](const std::string& name) { return !transport::CreateTransport(name).ok(); });
  return names;
}

void ClientRig::Publish(int64_t version) {
  for (auto& server : servers) {
    server->Publish(version);
  }
}

void ClientRig::OpenAttempt(int64_t step, int64_t attempt) {
  for (auto& server : servers) {
    server->OpenAttempt(step, attempt);
  }
}

void ClientRig::HoldAcknowledgements(bool hold) {
  for (auto& server : servers) {
    server->HoldAcknowledgements(hold);
  }
}

std::vector<int64_t> ClientRig::Sum(int unit) {
  std::vector<int64_t> total(static_cast<size_t>(layout.unit(unit).count), 0);
  for (auto& server : servers) {
    const std::vector<int64_t> part = server->Sum(unit);
    for (size_t i = 0; i < total.size(); ++i) {
      total[i] += part[i];
    }
  }
  return total;
}

int64_t ClientRig::pushes() {
  int64_t total = 0;
  for (auto& server : servers) {
    total += server->pushes();
  }
  return total;
}

int64_t ClientRig::elements() const {
  int64_t total = 0;
  for (const plan::UnitSpec& unit : unit_specs) {
    total += unit.count;
  }
  return total;
}

std::vector<float> IntegerGradient(const plan::UnitSpec& unit, int seed) {
  std::vector<float> gradient(static_cast<size_t>(unit.count));
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] =
        static_cast<float>((static_cast<int64_t>(i) * 13 + unit.index * 7 + seed * 5) % 201 - 100);
  }
  return gradient;
}

void Add(const std::vector<float>& gradient, std::vector<int64_t>& sum) {
  sum.resize(gradient.size(), 0);
  for (size_t i = 0; i < gradient.size(); ++i) {
    sum[i] += static_cast<int64_t>(gradient[i]);
  }
}

void ExpectWeights(const ParameterClient::View& view, DType type, int64_t version, int unit) {
  for (int64_t i = 0; i < view.count; ++i) {
    const float value = type == DType::kF32
                            ? static_cast<const float*>(view.data)[i]
                            : static_cast<float>(static_cast<const BFloat16*>(view.data)[i]);
    ASSERT_EQ(value, FakeServer::Weight(version, unit, i)) << "unit " << unit << " element " << i;
  }
}

void ExpectSums(ClientRig& rig, const std::vector<std::vector<int64_t>>& expected) {
  for (int unit = 0; unit < rig.units(); ++unit) {
    EXPECT_EQ(rig.Sum(unit), expected[static_cast<size_t>(unit)]) << "unit " << unit;
  }
}

void Returns::Returned(int unit, const void* gradient) {
  absl::MutexLock lock(&mutex_);
  units_.push_back(unit);
  gradients_.insert(gradient);
}

bool Returns::WaitFor(size_t count) {
  absl::MutexLock lock(&mutex_);
  const auto reached = [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return units_.size() >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(10));
}

bool Returns::WaitForUnit(int unit) {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ranges::find(units_, unit) != units_.end();
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(10));
}

std::vector<int> Returns::units() {
  absl::MutexLock lock(&mutex_);
  return units_;
}

std::set<const void*> Returns::gradients() {
  absl::MutexLock lock(&mutex_);
  return gradients_;
}

}  // namespace shoal::client
