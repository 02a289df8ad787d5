// The coordinator's metrics; names and meaning in docs/metrics.md.
#pragma once

#include "core/base/metrics.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

struct CoordinatorMetrics {
  explicit CoordinatorMetrics(Metrics& metrics);

  // Call when a step is committed.
  void OnStep(const proto::StepEvent& step, double unix_seconds);

  Metrics& metrics;  // for what is not always there
  Metrics::Counter& steps;
  Metrics::Counter& tokens;
  Metrics::Counter& target_tokens;
  Metrics::Counter& nonfinite_steps;
  Metrics::Counter& dropped_attempts;
  Metrics::Counter& late_reports;
  Metrics::Counter& packs_taken_back;
  Metrics::Counter& workers_joined;
  Metrics::Counter& workers_lost;
  Metrics::Gauge& loss;
  Metrics::Gauge& grad_norm;
  Metrics::Gauge& learning_rate;
  Metrics::Gauge& idle_ratio;
  Metrics::Gauge& predicted_idle_ratio;
  Metrics::Gauge& last_step_timestamp;
  Metrics::Histogram& step_duration;
  Metrics::Histogram& checkpoint_duration;
  Metrics::Counter& checkpoint_failures;
  Metrics::Gauge& last_checkpoint_timestamp;
  Metrics::Gauge& term;
  Metrics::Gauge& servers;
  Metrics::Gauge& workers;
  Metrics::Counter& server_lease_expiries;
  Metrics::Counter& worker_lease_expiries;
};

}  // namespace shoal::server
