// Counts and logs what a process refuses its peers.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "core/base/metrics.h"
#include "core/base/refusal_log.h"

namespace shoal::rpc {

inline constexpr const char* kRefusedMetric = "shoal_rpc_refused_total";
inline constexpr const char* kRefusedHelp = "Connections and calls refused to peers over gRPC.";

class Refusals {
 public:
  enum class Reason { kToken, kIdentity, kRole };

  // `metrics`: outlives this, or is null.
  explicit Refusals(Metrics* metrics);
  // Logs `why` with `what`, what was refused: "Register from ipv4:10.0.0.7:4000". Returns `why`.
  // Any thread.
  absl::Status Refuse(Reason reason, const std::string& what, absl::Status why);

 private:
  RefusalLog log_{"refused"};
  std::map<Reason, Metrics::Counter*> counters_;
};

}  // namespace shoal::rpc
