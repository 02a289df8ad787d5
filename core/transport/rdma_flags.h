// --rdma-device and --rdma-gid-index, the same in every program that uses RDMA.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace shoal::transport {

struct RdmaFlags {
  std::vector<std::string> devices;  // empty: as the job says
  std::optional<int> gid_index;
};

void AddRdmaFlags(CLI::App& app, RdmaFlags& flags);

}  // namespace shoal::transport
