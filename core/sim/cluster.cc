#include "core/sim/cluster.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/base/nearest.h"
#include "core/base/status.h"
#include "core/job/job_values.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {
namespace {

constexpr int64_t kMaxWorkers = int64_t{1} << 16;
constexpr NumberRange kFlopsRange{.low = 1, .high = 1e18};
constexpr NumberRange kSpeedRange{.low = 1e-3, .high = 1e3};
constexpr NumberRange kSecondsRange{.low = 0, .high = 1e3};

// A key of a section and what reads its value.
struct Handler {
  std::string name;
  std::function<absl::Status(const YAML::Node&)> read;
  // Errors name their place already; otherwise they continue "<line>: <key> ".
  bool locates = false;
};
using Handlers = std::vector<Handler>;

class ClusterParser {
 public:
  ClusterParser(std::string file_name, ClusterSpec& cluster)
      : file_name_(std::move(file_name)), cluster_(cluster) {}

  absl::Status Read(const YAML::Node& root);
  std::vector<std::string> Keys();

 private:
  std::string Where(const YAML::Node& node) const {
    return fmt::format("{}:{}", file_name_, std::max(node.Mark().line, 0) + 1);
  }
  absl::Status ReadMap(const YAML::Node& map, const std::string& section, const Handlers& handlers);
  absl::Status ReadDevices(const YAML::Node& node);
  absl::Status ReadServers(const YAML::Node& node);
  absl::Status Finish();

  Handlers TopKeys();
  Handlers GroupKeys(DeviceGroup& group);
  Handlers LinkKeys(Link& link);
  Handlers ServerKeys();

  const std::string file_name_;
  ClusterSpec& cluster_;
  double device_flops_ = DeviceGroup().flops;
  std::set<size_t> groups_with_flops_;
  std::set<std::string> seen_;
};

absl::Status Located(const std::string& where, const std::string& key, const absl::Status& status) {
  return status.ok() ? status : InvalidArgument("{}: {} {}", where, key, Message(status));
}

template <typename T>
absl::Status Assign(absl::StatusOr<T> value, T& out) {
  if (value.ok()) {
    out = *std::move(value);
  }
  return value.status();
}

absl::Status ReadRate(const YAML::Node& node, double& out) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, "a rate like 25Gb/s"));
  const absl::StatusOr<double> rate = ParseRate(text);
  if (!rate.ok()) {
    return InvalidArgument("is '{}', expected a rate like 25Gb/s or 3.1GB/s", text.substr(0, 60));
  }
  out = *rate;
  return absl::OkStatus();
}

template <typename E>
absl::Status ReadChoice(const YAML::Node& node,
                        const std::vector<std::pair<std::string, E>>& choices, E& out) {
  std::string expected = "one of";
  for (const auto& [name, value] : choices) {
    expected += (expected.ends_with("of") ? " " : ", ") + name;
    if (node.IsScalar() && node.Scalar() == name) {
      out = value;
      return absl::OkStatus();
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, expected));
  return InvalidArgument("is '{}', expected {}", text.substr(0, 60), expected);
}

absl::Status ClusterParser::ReadMap(const YAML::Node& map, const std::string& section,
                                    const Handlers& handlers) {
  if (!map.IsMap()) {
    return InvalidArgument("{}: {} is not a map of keys", Where(map),
                           section.empty() ? "the cluster" : section);
  }
  std::set<std::string> given;
  for (const auto& item : map) {
    const std::string where = Where(item.first);
    if (!item.first.IsScalar()) {
      return InvalidArgument("{}: a key is not a name", where);
    }
    const std::string& name = item.first.Scalar();
    const auto handler = std::find_if(handlers.begin(), handlers.end(),
                                      [&](const Handler& entry) { return entry.name == name; });
    if (handler == handlers.end()) {
      std::vector<std::string> known;
      for (const Handler& entry : handlers) {
        known.push_back(entry.name);
      }
      return InvalidArgument("{}: unknown key '{}'{}; did you mean {}?", where, name.substr(0, 60),
                             section.empty() ? "" : " in " + section, Nearest(name, known));
    }
    const std::string path = section.empty() ? name : section + "." + name;
    if (!given.insert(name).second) {
      return InvalidArgument("{}: {} is given twice", where, path);
    }
    seen_.insert(path);
    const absl::Status status = handler->read(item.second);
    SHOAL_RETURN_IF_ERROR(handler->locates ? status : Located(where, path, status));
  }
  return absl::OkStatus();
}

Handlers ClusterParser::GroupKeys(DeviceGroup& group) {
  return {{"count",
           [&](const YAML::Node& node) {
             return Assign(ParseInteger(node, {1, kMaxWorkers}), group.count);
           }},
          {"flops",
           [&](const YAML::Node& node) {
             groups_with_flops_.insert(static_cast<size_t>(&group - cluster_.devices.data()));
             return Assign(ParseNumber(node, kFlopsRange), group.flops);
           }},
          {"speed", [&](const YAML::Node& node) {
             return Assign(ParseNumber(node, kSpeedRange), group.speed);
           }}};
}

absl::Status ClusterParser::ReadDevices(const YAML::Node& node) {
  if (!node.IsSequence()) {
    cluster_.devices = {DeviceGroup()};
    return Located(Where(node), "devices",
                   Assign(ParseInteger(node, {1, kMaxWorkers}), cluster_.devices[0].count));
  }
  if (node.size() == 0) {
    return InvalidArgument(
        "{}: devices is an empty list, expected a number of devices or groups of them",
        Where(node));
  }
  cluster_.devices.resize(node.size());
  for (size_t i = 0; i < node.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(ReadMap(node[i], "devices", GroupKeys(cluster_.devices[i])));
  }
  return absl::OkStatus();
}

Handlers ClusterParser::LinkKeys(Link& link) {
  return {{"rate", [&](const YAML::Node& node) { return ReadRate(node, link.bytes_per_second); }},
          {"latency_seconds", [&](const YAML::Node& node) {
             return Assign(ParseNumber(node, kSecondsRange), link.latency_seconds);
           }}};
}

Handlers ClusterParser::ServerKeys() {
  Handlers handlers = LinkKeys(cluster_.server_link);
  handlers.push_back({"count", [&](const YAML::Node& node) {
                        return Assign(ParseInteger(node, {1, kMaxWorkers}), cluster_.servers);
                      }});
  return handlers;
}

absl::Status ClusterParser::ReadServers(const YAML::Node& node) {
  if (!node.IsMap()) {
    return Located(Where(node), "servers",
                   ReadChoice<int64_t>(node, {{"colocated", 0}}, cluster_.servers));
  }
  cluster_.servers = 1;
  return ReadMap(node, "servers", ServerKeys());
}

Handlers ClusterParser::TopKeys() {
  return {
      {"devices", [&](const YAML::Node& node) { return ReadDevices(node); }, true},
      {"device_flops",
       [&](const YAML::Node& node) {
         return Assign(ParseNumber(node, kFlopsRange), device_flops_);
       }},
      {"devices_per_node",
       [&](const YAML::Node& node) {
         return Assign(ParseInteger(node, {1, kMaxWorkers}), cluster_.devices_per_node);
       }},
      {"device_link",
       [&](const YAML::Node& node) {
         return ReadMap(node, "device_link", LinkKeys(cluster_.device_link));
       },
       true},
      {"node_link",
       [&](const YAML::Node& node) {
         return ReadMap(node, "node_link", LinkKeys(cluster_.node_link));
       },
       true},
      {"servers", [&](const YAML::Node& node) { return ReadServers(node); }, true},
      {"gathers",
       [&](const YAML::Node& node) {
         return ReadChoice<Gathers>(
             node, {{"flat", Gathers::kFlat}, {"node-cached", Gathers::kNodeCached}},
             cluster_.gathers);
       }},
      {"layer_transfers",
       [&](const YAML::Node& node) {
         return ReadChoice<LayerTransfers>(
             node,
             {{"hierarchical", LayerTransfers::kHierarchical}, {"flat", LayerTransfers::kFlat}},
             cluster_.layer_transfers);
       }},
      {"step_seconds",
       [&](const YAML::Node& node) {
         return Assign(ParseNumber(node, kSecondsRange), cluster_.step_seconds);
       }},
  };
}

absl::Status ClusterParser::Finish() {
  for (size_t i = 0; i < cluster_.devices.size(); ++i) {
    if (!groups_with_flops_.contains(i)) {
      cluster_.devices[i].flops = device_flops_;
    }
  }
  if (!seen_.contains("devices")) {
    return InvalidArgument("{}: devices is missing: how many, or a list of groups", file_name_);
  }
  if (cluster_.workers() > kMaxWorkers) {
    return InvalidArgument("{}: {} devices, at most {} are simulated", file_name_,
                           cluster_.workers(), kMaxWorkers);
  }
  if ((cluster_.nodes() > 1 || cluster_.servers > 0) && !seen_.contains("node_link.rate")) {
    return InvalidArgument(
        "{}: {} devices in {} nodes{} need node_link.rate: what a node's network carries",
        file_name_, cluster_.workers(), cluster_.nodes(),
        cluster_.servers > 0 ? " and servers apart from them" : "");
  }
  if (cluster_.servers > 0 && !seen_.contains("servers.rate")) {
    return InvalidArgument("{}: servers.rate is missing: what each server's network carries",
                           file_name_);
  }
  return absl::OkStatus();
}

absl::Status ClusterParser::Read(const YAML::Node& root) {
  SHOAL_RETURN_IF_ERROR(ReadMap(root, "", TopKeys()));
  return Finish();
}

std::vector<std::string> ClusterParser::Keys() {
  const auto is_section = [](const std::string& name) {
    return name == "device_link" || name == "node_link";
  };
  std::vector<std::string> keys;
  const auto add = [&](const std::string& section, const Handlers& handlers) {
    for (const Handler& handler : handlers) {
      keys.push_back(section + handler.name);
    }
  };
  for (const Handler& handler : TopKeys()) {
    const std::string& name = handler.name;
    if (is_section(name)) {
      add(name + ".", LinkKeys(cluster_.node_link));
      continue;
    }
    keys.push_back(name);
    if (name == "devices") {
      add("devices.", GroupKeys(cluster_.devices[0]));
    } else if (name == "servers") {
      add("servers.", ServerKeys());
    }
  }
  return keys;
}

}  // namespace

int64_t ClusterSpec::workers() const {
  int64_t count = 0;
  for (const DeviceGroup& group : devices) {
    count += group.count;
  }
  return count;
}

std::vector<double> ClusterSpec::Paces() const {
  std::vector<double> paces;
  for (const DeviceGroup& group : devices) {
    paces.insert(paces.end(), static_cast<size_t>(group.count), group.flops * group.speed);
  }
  return paces;
}

std::vector<double> ClusterSpec::Speeds() const {
  std::vector<double> speeds = Paces();
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  for (double& speed : speeds) {
    speed /= fastest;
  }
  return speeds;
}

int64_t ClusterSpec::DevicesBeside(int64_t worker) const {
  const int64_t first = worker / node_size() * node_size();
  return std::min(node_size(), workers() - first);
}

absl::StatusOr<ClusterSpec> ParseCluster(std::string_view yaml, const std::string& file_name) {
  ClusterSpec cluster;
  ClusterParser parser(file_name, cluster);
  try {
    SHOAL_RETURN_IF_ERROR(parser.Read(YAML::Load(std::string(yaml))));
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}:{}: not valid YAML: {}", file_name, std::max(error.mark.line, 0) + 1,
                           error.msg);
  }
  return cluster;
}

std::vector<std::string> ClusterKeys() {
  ClusterSpec cluster;
  return ClusterParser("", cluster).Keys();
}

}  // namespace shoal::plan
