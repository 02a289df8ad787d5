// The coordinator's metrics; names and meaning in docs/metrics.md. What is not known yet (a loss
// before the first step) is not there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/metrics.h"
#include "core/job/job.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

struct CoordinatorMetrics {
  explicit CoordinatorMetrics(Metrics& metrics);

  // A member whose lease ran out or that cannot be reached.
  void OnMemberLost(proto::Role role);
  // The job whose turn it is.
  void OnJob(const plan::Job& job);
  // The state of the job whose turn it is, as `shoal jobs` has it.
  void OnState(std::string_view now, double unix_seconds);

  struct StepContext {
    double flops = 0;  // of the model, forward and backward
    int64_t target_steps = 0;
    double unix_seconds = 0;
  };
  // The step at hand came to the end of this phase ("plan", "compute", "prepare", "commit"), in
  // that order; empty: it is opened.
  void OnPhase(std::string_view phase, absl::Time now);
  // Call when a step is committed.
  void OnStep(const proto::StepEvent& step, const StepContext& context);

  void OnValidation(const proto::ValidationEvent& validation);

  struct CheckpointContext {
    double seconds = 0;
    int64_t bytes = 0;
    double unix_seconds = 0;
  };
  // Call when a checkpoint is complete.
  void OnCheckpoint(const CheckpointContext& checkpoint);
  // Call after one that failed, too; nullopt: unknown.
  void OnRoom(const std::optional<std::filesystem::space_info>& room);

  void Set(const char* name, const char* help, double value, const Metrics::Labels& labels = {});

  Metrics& metrics;
  std::string state;                                     // the last one
  std::optional<absl::Time> phase_begun;                 // of the step at hand
  std::map<std::string_view, Metrics::Counter*> phases;  // those that ended once
  std::map<std::pair<std::string_view, Metrics::Labels>, Metrics::Gauge*> gauges;  // set once
  Metrics::Counter& steps;
  Metrics::Counter& tokens;
  Metrics::Counter& target_tokens;
  Metrics::Counter& nonfinite_steps;
  Metrics::Counter& skipped_steps;
  Metrics::Counter& dropped_attempts;
  Metrics::Counter& late_reports;
  Metrics::Counter& packs_taken_back;
  Metrics::Counter& workers_joined;
  Metrics::Counter& workers_lost;  // by a job that went on without
  Metrics::Counter& flops;
  Metrics::Counter& moved_bytes;
  Metrics::Gauge& move_bytes_left;
  Metrics::Counter& given_up_moves;
  Metrics::Counter& replicated_bytes;
  Metrics::Gauge& underreplicated_partitions;
  Metrics::Histogram& move_pause;
  Metrics::Histogram& step_duration;
  Metrics::Histogram& checkpoint_duration;
  Metrics::Counter& checkpoint_failures;
  Metrics::Counter& checkpoint_bytes;
  Metrics::Gauge& term;
  Metrics::Gauge& servers;
  Metrics::Gauge& workers;
  Metrics::Gauge& oldest_server_lease;
  Metrics::Gauge& oldest_worker_lease;
  Metrics::Counter& silently_lost_servers;
  Metrics::Counter& silently_lost_workers;
  Metrics::Counter& refused_versions;
};

}  // namespace shoal::server
