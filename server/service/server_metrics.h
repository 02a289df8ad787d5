// The metrics of a parameter server, made once. docs/metrics.md lists them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "server/store/store.h"

namespace shoal::server {

class ServerMetrics {
 public:
  explicit ServerMetrics(Metrics& metrics);

  // One served request: `operation` is "push" or a control call's name in lower case.
  void CountRequest(const std::string& operation, absl::StatusCode code, absl::Duration duration);
  void SetResidentBytes(const StoreBytes& bytes);
  void CountConnection(const std::string& transport);
  // `from` was preferred, `to` was taken.
  void CountFallback(const std::string& from, const std::string& to);
  void CountReceived(const std::string& transport, int64_t bytes);

  Metrics::Gauge& queue_depth;
  Metrics::Gauge& clients;
  Metrics::Gauge& version;
  Metrics::Counter& duplicate_pushes;
  Metrics::Counter& found_without_doorbell;
  Metrics::Counter& malformed_pushes;
  Metrics::Counter& checkpoint_commit_wait_seconds;
  Metrics::Histogram& push_duration;

 private:
  Metrics& metrics_;
};

}  // namespace shoal::server
