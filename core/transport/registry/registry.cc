#include "core/transport/registry/registry.h"

#include "core/base/status.h"
#include "core/transport/shm/transport.h"
#include "core/transport/tcp/transport.h"
#include "core/transport/verbs/transport.h"

namespace shoal::transport {
namespace {

struct Entry {
  std::string_view name;
  absl::StatusOr<std::unique_ptr<Transport>> (*create)(const TransportOptions&);
};

// Fastest first.
constexpr Entry kTransports[] = {
    {"shm", CreateShmTransport},
    {"verbs", CreateVerbsTransport},
    {"tcp", CreateTcpTransport},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(std::string_view name,
                                                           const TransportOptions& options) {
  for (const Entry& entry : kTransports) {
    if (entry.name == name) {
      return entry.create(options);
    }
  }
  return InvalidArgument("unknown transport '{}'; known are {}", name,
                         fmt::join(TransportNames(), ", "));
}

std::vector<std::string> TransportNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kTransports) {
    names.emplace_back(entry.name);
  }
  return names;
}

}  // namespace shoal::transport
