// Creates transports by name, so that a new transport is one more line in registry.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/options.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// `name` is "shm", "verbs" or "tcp"; InvalidArgument for another lists the known ones. The
// transport's threads and sockets live until it is destroyed.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(std::string_view name,
                                                           const TransportOptions& options = {});

// In the order in which a client should offer them: fastest first.
std::vector<std::string> TransportNames();

}  // namespace shoal::transport
