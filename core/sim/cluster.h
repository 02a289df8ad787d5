// A cluster to simulate: devices, the nodes that hold them, links and servers. A small YAML file
// (docs/on-demand.md lists the keys; examples/clusters/ has files), read with the same care as a
// job file: an unknown key is an error that names the line and the nearest known key.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::plan {

struct DeviceGroup {
  int64_t count = 1;
  double flops = 1.4e14;  // FLOP/s that a device of speed 1 reaches, not its data sheet's
  double speed = 1;

  bool operator==(const DeviceGroup&) const = default;
};

// Capacity of one end, in each direction at the same time. The default takes no time.
struct Link {
  double bytes_per_second = std::numeric_limits<double>::infinity();
  double latency_seconds = 0;

  bool operator==(const Link&) const = default;
};

// What crosses a node's network in a get with synchronization step.
enum class Gathers {
  kFlat,        // every device fetches for itself
  kNodeCached,  // what one device fetched also serves the others of its node
};
// How weights and gradients travel with synchronization layer.
enum class LayerTransfers {
  kHierarchical,  // collectives: into and out of each node once, then over its device links
  kFlat,          // gets and pushes, as with synchronization step: what Shoal's own baseline does
};

// What losses of servers cost; plan::CompareWithReplicas reckons with it.
struct Losses {
  double server_mtbf_hours = 0;   // mean time between two losses of one server; 0: not given
  double checkpoint_seconds = 0;  // that a checkpoint keeps training waiting
  double restore_seconds = 0;     // from a loss until training goes on from a checkpoint

  bool operator==(const Losses&) const = default;
};

struct ClusterSpec {
  std::vector<DeviceGroup> devices = std::vector<DeviceGroup>(1);  // in order of worker index
  int64_t devices_per_node = 0;                                    // 0: all in one node
  Link device_link;     // of a device, to others of its node
  Link node_link;       // of a node, shared by its devices
  int64_t servers = 0;  // separate from the devices; 0: one at each device
  Link server_link;     // of each separate server
  Gathers gathers = Gathers::kFlat;
  LayerTransfers layer_transfers = LayerTransfers::kHierarchical;
  double step_seconds = 0;  // prepare and commit, once all have finished
  Losses losses;

  bool operator==(const ClusterSpec&) const = default;

  int64_t workers() const;
  // FLOP/s by worker.
  std::vector<double> Paces() const;
  // Relative to the fastest; for plan::StepPlanOptions::speeds.
  std::vector<double> Speeds() const;
  int64_t node_size() const { return devices_per_node > 0 ? devices_per_node : workers(); }
  int64_t nodes() const { return (workers() + node_size() - 1) / node_size(); }
  // Of each server, or of each device that has one beside it, to others: its share of a node's link
  // where there are several nodes.
  double ServerBytesPerSecond() const;
  // Returns the number of devices in that worker's node; the last node may have fewer than the
  // others.
  int64_t DevicesBeside(int64_t worker) const;
};

// `file_name` is for messages.
absl::StatusOr<ClusterSpec> ParseCluster(std::string_view yaml, const std::string& file_name);

// Returns every key, such as "device_link.rate", for the test that documentation is complete.
std::vector<std::string> ClusterKeys();

}  // namespace shoal::plan
