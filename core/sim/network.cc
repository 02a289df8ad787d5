#include "core/sim/network.h"

#include <algorithm>
#include <vector>

namespace shoal::sim {
namespace {

using plan::ClusterSpec;
using plan::Synchronization;

// Whether transfers are collectives: shards then lie on the devices themselves, wherever the
// servers are.
bool IsCollective(const ClusterSpec& cluster, Synchronization synchronization) {
  return synchronization == Synchronization::kLayer &&
         cluster.layer_transfers == plan::LayerTransfers::kHierarchical;
}

// Returns the fraction of a unit's bytes that lies in other nodes.
double RemoteShare(const ClusterSpec& cluster, bool apart, int64_t worker) {
  if (apart) {
    return 1;
  }
  const auto all = static_cast<double>(cluster.workers());
  return (all - static_cast<double>(cluster.DevicesBeside(worker))) / all;
}

double PerByte(const plan::Link& link) { return 1 / link.bytes_per_second; }

}  // namespace

TransferCosts TransferCostsOf(const ClusterSpec& cluster, Synchronization synchronization,
                              int64_t worker) {
  const bool collective = IsCollective(cluster, synchronization);
  const bool apart = cluster.servers > 0 && !collective;
  const bool cached =
      synchronization == Synchronization::kStep && cluster.gathers == plan::Gathers::kNodeCached;
  const auto all = static_cast<double>(cluster.workers());
  const auto beside = static_cast<double>(cluster.DevicesBeside(worker));
  const double remote = RemoteShare(cluster, apart, worker);
  const double near = apart ? 0 : (beside - 1) / all;  // in other devices of this node
  const double node = PerByte(cluster.node_link);
  const double device = PerByte(cluster.device_link);
  // Over the node's link once for all its devices, then over theirs; or once for each device.
  const auto shared = [&](double link_users) {
    return std::max(remote * node * link_users,
                    (link_users > 1 || beside == 1 ? near : near + remote) * device);
  };
  TransferCosts costs;
  costs.get_seconds_per_byte = shared(collective || cached ? 1 : beside);
  costs.push_seconds_per_byte = shared(collective ? 1 : beside);
  costs.latency = std::max(remote > 0 ? cluster.node_link.latency_seconds : 0,
                           near > 0 ? cluster.device_link.latency_seconds : 0);
  if (apart) {
    const double servers = PerByte(cluster.server_link) / static_cast<double>(cluster.servers);
    const double readers = cached ? static_cast<double>(cluster.nodes()) : all;
    costs.get_seconds_per_byte = std::max(costs.get_seconds_per_byte, servers * readers);
    costs.push_seconds_per_byte = std::max(costs.push_seconds_per_byte, servers * all);
    costs.latency += cluster.server_link.latency_seconds;
    costs.one_link = false;
  }
  return costs;
}

double StepEndSeconds(const ClusterSpec& cluster) {
  constexpr double kMessages = 4;  // two barriers, there and back
  double latency = 0;
  for (int64_t worker = 0; worker < cluster.workers(); worker += cluster.node_size()) {
    latency = std::max(latency, TransferCostsOf(cluster, Synchronization::kStep, worker).latency);
  }
  return cluster.step_seconds + kMessages * latency;
}

StepBytes& StepBytes::operator+=(const StepBytes& other) {
  get += other.get;
  push += other.push;
  between_nodes += other.between_nodes;
  return *this;
}

StepBytes CountBytes(const ClusterSpec& cluster, Synchronization synchronization,
                     const std::vector<WorkerBytes>& workers) {
  const bool collective = IsCollective(cluster, synchronization);
  const bool apart = cluster.servers > 0 && !collective;
  const bool cached =
      synchronization == Synchronization::kStep && cluster.gathers == plan::Gathers::kNodeCached;
  StepBytes bytes;
  const auto size = static_cast<size_t>(cluster.node_size());
  for (size_t first = 0; first < workers.size(); first += size) {
    WorkerBytes sum;
    WorkerBytes most;
    for (size_t w = first; w < std::min(first + size, workers.size()); ++w) {
      sum.get += workers[w].get;
      sum.push += workers[w].push;
      most.get = std::max(most.get, workers[w].get);
      most.push = std::max(most.push, workers[w].push);
    }
    bytes.get += sum.get;
    bytes.push += sum.push;
    bytes.between_nodes += RemoteShare(cluster, apart, static_cast<int64_t>(first)) *
                           (static_cast<double>(collective || cached ? most.get : sum.get) +
                            static_cast<double>(collective ? most.push : sum.push));
  }
  return bytes;
}

}  // namespace shoal::sim
