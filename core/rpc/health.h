// A port for probes alone: the standard gRPC health service, without a token and in plain text, on
// the host that the program listens at. Probes name "live" (the process runs), "ready" (it has what
// it needs to take work: a server or worker is registered), or, of a coordinator, "leads" (it does
// not stand by for another).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/rpc/server.h"

namespace shoal::rpc {

class Health {
 public:
  // Not ready yet. `port` 0 picks a free one; below 0: no port, and all else does nothing.
  static absl::StatusOr<std::unique_ptr<Health>> Serve(int port, const std::string& listen);

  void SetReady(bool ready) { Set("ready", ready); }
  void SetLeads(bool leads) { Set("leads", leads); }
  int port() const { return server_ == nullptr ? -1 : server_->port(); }

 private:
  void Set(const std::string& name, bool serving);

  std::unique_ptr<Server> server_;
};

}  // namespace shoal::rpc
