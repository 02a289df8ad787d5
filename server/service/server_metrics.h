// The metrics of a parameter server, made once. docs/metrics.md lists them.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/metrics.h"
#include "core/transport/transport.h"
#include "server/store/store.h"

namespace shoal::server {

class ServerMetrics {
 public:
  explicit ServerMetrics(Metrics& metrics);

  // Counts a request: a control call's name in lower case, or "push" for a refused one
  // (applied_pushes and push_duration count the others).
  void CountRequest(const std::string& operation, absl::StatusCode code);
  void CountRequest(const std::string& operation, absl::StatusCode code, absl::Duration duration);
  // To be taken back with the sign -1.
  void AddHeld(int64_t partitions, const StoreBytes& bytes, int sign = 1);
  void CountConnection(const std::string& transport);
  // `from` was preferred, `to` was taken.
  void CountFallback(const std::string& from, const std::string& to);
  // Counts what the transport counted since `counted`, which it brings up to date.
  void FollowTransport(const transport::Transport& transport,
                       transport::TransportStatistics& counted) ABSL_LOCKS_EXCLUDED(follow_mutex_);
  Metrics::Counter& received_bytes(const std::string& transport);

  Metrics::Gauge& queue_depth;
  Metrics::Gauge& clients;
  Metrics::Gauge& version;
  Metrics::Counter& applied_pushes;
  Metrics::Counter& duplicate_pushes;
  Metrics::Counter& found_without_doorbell;
  Metrics::Counter& malformed_pushes;
  // Calls of who was fenced or never admitted, or of a coordinator that has a successor.
  Metrics::Counter& fenced_calls;
  Metrics::Counter& checkpoint_commit_wait_seconds;
  Metrics::Histogram& push_duration;

 private:
  Metrics& metrics_;
  absl::Mutex follow_mutex_;
};

}  // namespace shoal::server
