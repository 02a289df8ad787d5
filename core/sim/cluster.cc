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
#include "core/job/yaml_error.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {
namespace {

constexpr int64_t kMaxWorkers = int64_t{1} << 16;
constexpr NumberRange kFlopsRange{.low = 1, .high = 1e18};
constexpr NumberRange kSpeedRange{.low = 1e-3, .high = 1e3};
constexpr NumberRange kSecondsRange{.low = 0, .high = 1e3};
constexpr NumberRange kHoursRange{.low = 1e-2, .high = 1e6};
constexpr NumberRange kRestoreRange{.low = 0, .high = 86400};

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

  const std::string file_name_;
  ClusterSpec& cluster_;
  double device_flops_ = DeviceGroup().flops;
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

Handler CountKey(const char* name, int64_t& out) {
  return {name, [&out](const YAML::Node& node) {
            return Assign(ParseInteger(node, {1, kMaxWorkers}), out);
          }};
}

Handler NumberKey(const char* name, const NumberRange& range, double& out) {
  return {name,
          [&out, range](const YAML::Node& node) { return Assign(ParseNumber(node, range), out); }};
}

Handler RateKey(const char* name, double& out) {
  return {name, [&out](const YAML::Node& node) -> absl::Status {
            SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, "a rate like 25Gb/s"));
            if (!Assign(ParseRate(text), out).ok()) {
              return InvalidArgument("is '{}', expected a rate like 25Gb/s or 3.1GB/s",
                                     text.substr(0, 60));
            }
            return absl::OkStatus();
          }};
}

template <typename E>
Handler ChoiceKey(const char* name, std::vector<std::pair<std::string, E>> choices, E& out) {
  return {name, [choices = std::move(choices), &out](const YAML::Node& node) -> absl::Status {
            std::string expected = "one of";
            for (const auto& [choice, value] : choices) {
              expected += (expected.ends_with("of") ? " " : ", ") + choice;
              if (node.IsScalar() && node.Scalar() == choice) {
                out = value;
                return absl::OkStatus();
              }
            }
            SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, expected));
            return InvalidArgument("is '{}', expected {}", text.substr(0, 60), expected);
          }};
}

Handlers LinkKeys(Link& link) {
  return {RateKey("rate", link.bytes_per_second),
          NumberKey("latency_seconds", kSecondsRange, link.latency_seconds)};
}

Handlers GroupKeys(DeviceGroup& group) {
  return {CountKey("count", group.count), NumberKey("flops", kFlopsRange, group.flops),
          NumberKey("speed", kSpeedRange, group.speed)};
}

Handlers ServerKeys(ClusterSpec& cluster) {
  Handlers handlers = LinkKeys(cluster.server_link);
  handlers.push_back(CountKey("count", cluster.servers));
  return handlers;
}

Handlers LossKeys(Losses& losses) {
  return {NumberKey("server_mtbf_hours", kHoursRange, losses.server_mtbf_hours),
          NumberKey("checkpoint_seconds", kSecondsRange, losses.checkpoint_seconds),
          NumberKey("restore_seconds", kRestoreRange, losses.restore_seconds)};
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
      return InvalidArgument("{}: unknown key '{}'{}; {}", where, name.substr(0, 60),
                             section.empty() ? "" : " in " + section, DidYouMean(name, known));
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

absl::Status ClusterParser::ReadDevices(const YAML::Node& node) {
  if (!node.IsSequence()) {
    cluster_.devices = {DeviceGroup{.flops = 0}};
    return Located(Where(node), "devices", CountKey("", cluster_.devices[0].count).read(node));
  }
  if (node.size() == 0) {
    return InvalidArgument(
        "{}: devices is an empty list, expected a number of devices or groups of them",
        Where(node));
  }
  cluster_.devices.assign(node.size(), DeviceGroup{.flops = 0});
  for (size_t i = 0; i < node.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(ReadMap(node[i], "devices", GroupKeys(cluster_.devices[i])));
  }
  return absl::OkStatus();
}

absl::Status ClusterParser::ReadServers(const YAML::Node& node) {
  if (!node.IsMap()) {
    return Located(Where(node), "servers",
                   ChoiceKey<int64_t>("", {{"colocated", 0}}, cluster_.servers).read(node));
  }
  cluster_.servers = 1;
  return ReadMap(node, "servers", ServerKeys(cluster_));
}

Handlers ClusterParser::TopKeys() {
  const auto section = [&](const char* name, Handlers keys) {
    return Handler{name,
                   [this, name, keys = std::move(keys)](const YAML::Node& node) {
                     return ReadMap(node, name, keys);
                   },
                   true};
  };
  return {
      {"devices", [&](const YAML::Node& node) { return ReadDevices(node); }, true},
      NumberKey("device_flops", kFlopsRange, device_flops_),
      CountKey("devices_per_node", cluster_.devices_per_node),
      section("device_link", LinkKeys(cluster_.device_link)),
      section("node_link", LinkKeys(cluster_.node_link)),
      {"servers", [&](const YAML::Node& node) { return ReadServers(node); }, true},
      ChoiceKey<Gathers>("gathers",
                         {{"flat", Gathers::kFlat}, {"node-cached", Gathers::kNodeCached}},
                         cluster_.gathers),
      ChoiceKey<LayerTransfers>(
          "layer_transfers",
          {{"hierarchical", LayerTransfers::kHierarchical}, {"flat", LayerTransfers::kFlat}},
          cluster_.layer_transfers),
      NumberKey("step_seconds", kSecondsRange, cluster_.step_seconds),
      section("losses", LossKeys(cluster_.losses)),
  };
}

absl::Status ClusterParser::Finish() {
  for (DeviceGroup& group : cluster_.devices) {
    if (group.flops == 0) {  // not given
      group.flops = device_flops_;
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
  for (const char* key : {"server_mtbf_hours", "checkpoint_seconds", "restore_seconds"}) {
    if (seen_.contains("losses") && !seen_.contains(fmt::format("losses.{}", key))) {
      return InvalidArgument("{}: losses.{} is missing", file_name_, key);
    }
  }
  return absl::OkStatus();
}

absl::Status ClusterParser::Read(const YAML::Node& root) {
  SHOAL_RETURN_IF_ERROR(ReadMap(root, "", TopKeys()));
  return Finish();
}

std::vector<std::string> ClusterParser::Keys() {
  std::vector<std::string> keys;
  for (const Handler& handler : TopKeys()) {
    const std::string& name = handler.name;
    const bool is_link = name == "device_link" || name == "node_link";
    if (!is_link && name != "losses") {
      keys.push_back(name);
    }
    const Handlers below = is_link             ? LinkKeys(cluster_.node_link)
                           : name == "devices" ? GroupKeys(cluster_.devices[0])
                           : name == "servers" ? ServerKeys(cluster_)
                           : name == "losses"  ? LossKeys(cluster_.losses)
                                               : Handlers();
    for (const Handler& key : below) {
      keys.push_back(name + "." + key.name);
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

double ClusterSpec::ServerBytesPerSecond() const {
  return servers > 0   ? server_link.bytes_per_second
         : nodes() > 1 ? node_link.bytes_per_second / static_cast<double>(node_size())
                       : device_link.bytes_per_second;
}

absl::StatusOr<ClusterSpec> ParseCluster(std::string_view yaml, const std::string& file_name) {
  ClusterSpec cluster;
  ClusterParser parser(file_name, cluster);
  try {
    SHOAL_RETURN_IF_ERROR(parser.Read(YAML::Load(std::string(yaml))));
  } catch (const YAML::Exception& error) {
    return YamlError(file_name, yaml, error);
  }
  return cluster;
}

std::vector<std::string> ClusterKeys() {
  ClusterSpec cluster;
  return ClusterParser("", cluster).Keys();
}

}  // namespace shoal::plan
