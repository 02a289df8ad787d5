#include "server/service/server_metrics.h"

#include "core/rpc/refusals.h"

namespace shoal::server {

ServerMetrics::ServerMetrics(Metrics& metrics)
    : queue_depth(metrics.gauge("shoal_ps_queue_depth", "Pushes that wait to be applied")),
      clients(metrics.gauge("shoal_ps_clients", "Clients that are connected")),
      version(metrics.gauge("shoal_ps_param_version", "Version of the weights that is published")),
      applied_pushes(metrics.counter("shoal_ps_requests_total", "Requests served",
                                     {{"op", "push"}, {"code", "OK"}})),
      duplicate_pushes(metrics.counter("shoal_ps_duplicate_pushes_total",
                                       "Pushes recognised as applied already")),
      found_without_doorbell(
          metrics.counter("shoal_ps_pushes_without_doorbell_total",
                          "Pushes found by looking over the slots, their doorbell lost")),
      malformed_pushes(metrics.counter("shoal_ps_malformed_pushes_total",
                                       "Pushes that were damaged on their way")),
      fenced_calls(metrics.counter(rpc::kRefusedMetric, rpc::kRefusedHelp, {{"reason", "fenced"}})),
      checkpoint_commit_wait_seconds(
          metrics.counter("shoal_checkpoint_commit_wait_seconds_total",
                          "Time commits waited for partitions that were not yet written")),
      push_duration(metrics.latency("shoal_ps_request_duration_seconds", "Time to serve a request",
                                    {{"op", "push"}})),
      metrics_(metrics) {}

void ServerMetrics::CountRequest(const std::string& operation, absl::StatusCode code) {
  metrics_
      .counter("shoal_ps_requests_total", "Requests served",
               {{"op", operation}, {"code", absl::StatusCodeToString(code)}})
      .Increment();
}

void ServerMetrics::CountRequest(const std::string& operation, absl::StatusCode code,
                                 absl::Duration duration) {
  CountRequest(operation, code);
  if (code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kAborted) {
    fenced_calls.Increment();  // nothing else is refused with these
  }
  metrics_
      .latency("shoal_ps_request_duration_seconds", "Time to serve a request", {{"op", operation}})
      .Observe(absl::ToDoubleSeconds(duration));
}

void ServerMetrics::AddHeld(int64_t partitions, const StoreBytes& bytes, int sign) {
  metrics_.gauge("shoal_ps_partitions", "Partitions held")
      .Increment(static_cast<double>(sign * partitions));
  const auto add = [&](const std::string& kind, int64_t value) {
    metrics_.gauge("shoal_ps_resident_bytes", "Memory of the partitions held", {{"kind", kind}})
        .Increment(static_cast<double>(sign * value));
  };
  add("param", bytes.weights);
  add("grad", bytes.gradients);
  add("master", bytes.master);
  add("moment", bytes.moments);
}

void ServerMetrics::CountConnection(const std::string& transport) {
  metrics_.counter("shoal_ps_connections_total", "Connections made", {{"transport", transport}})
      .Increment();
}

void ServerMetrics::CountFallback(const std::string& from, const std::string& to) {
  metrics_
      .counter("shoal_ps_transport_fallbacks_total",
               "Connections that did not get the transport the job prefers",
               {{"from", from}, {"to", to}})
      .Increment();
}

void ServerMetrics::FollowTransport(const transport::Transport& transport,
                                    transport::TransportStatistics& counted) {
  absl::MutexLock lock(&follow_mutex_);
  const transport::TransportStatistics now = transport.statistics();
  for (const auto& [route, ranges] : now.gpu_ranges) {
    metrics_
        .counter("shoal_ps_gpu_ranges_total",
                 "Ranges of GPU memory, by how a device reaches them; refused: not at all",
                 {{"transport", std::string(transport.name())}, {"route", route}})
        .Increment(static_cast<double>(ranges - counted.gpu_ranges[route]));
  }
  for (const auto& [kind, errors] : now.device_errors) {
    metrics_
        .counter("shoal_verbs_errors_total", "Operations that RDMA devices reported as failed.",
                 {{"kind", kind}})
        .Increment(static_cast<double>(errors - counted.device_errors[kind]));
  }
  counted = now;
}

Metrics::Counter& ServerMetrics::received_bytes(const std::string& transport) {
  return metrics_.counter("shoal_ps_push_bytes_total", "Gradient bytes taken",
                          {{"transport", transport}});
}

}  // namespace shoal::server
