#include "server/coordinator/members/coordinator_metrics.h"

#include <algorithm>
#include <array>

namespace shoal::server {

CoordinatorMetrics::CoordinatorMetrics(Metrics& metrics)
    : metrics(metrics),
      steps(metrics.counter("shoal_train_steps_total", "Optimizer steps committed.")),
      tokens(metrics.counter("shoal_train_tokens_total", "Tokens of committed steps.")),
      target_tokens(metrics.counter("shoal_train_target_tokens_total",
                                    "Tokens of committed steps that loss is taken on.")),
      nonfinite_steps(metrics.counter("shoal_train_nonfinite_steps_total",
                                      "Steps whose loss or gradients were not finite.")),
      skipped_steps(metrics.counter("shoal_train_skipped_steps_total",
                                    "Steps committed without a change (train.skip_step).")),
      dropped_attempts(metrics.counter("shoal_train_dropped_attempts_total",
                                       "Attempts at a step that were dropped whole.")),
      late_reports(metrics.counter(
          "shoal_coordinator_late_reports_total",
          "Reports of workers for an attempt that was over or that had been reported before.")),
      packs_taken_back(metrics.counter(
          "shoal_train_packs_taken_back_total",
          "Packs in the hands of workers that were lost or left, which others run.")),
      workers_joined(metrics.counter("shoal_train_workers_joined_total",
                                     "Workers that joined a job that trained.")),
      workers_lost(metrics.counter("shoal_train_workers_lost_total",
                                   "Workers that were lost or left, without which a job went on.")),
      flops(metrics.counter("shoal_train_flops_total",
                            "Floating-point operations of the model in committed steps, forward "
                            "and backward.")),
      moved_bytes(metrics.counter("shoal_move_bytes_total",
                                  "Bytes of state that went from server to server.")),
      move_bytes_left(metrics.gauge("shoal_move_left_bytes",
                                    "Bytes of state that are still to go from server to server.")),
      given_up_moves(metrics.counter("shoal_move_rollbacks_total",
                                     "Moves of state between servers that were given up.")),
      replicated_bytes(metrics.counter("shoal_replicated_bytes_total",
                                       "Bytes of gradients that went from server to backups.")),
      underreplicated_partitions(metrics.gauge("shoal_underreplicated_partitions",
                                               "Partitions of the job that fewer servers have than "
                                               "service.replicas says.")),
      move_pause(metrics.duration("shoal_move_pause_seconds",
                                  "From the end of a step until the next one began at other "
                                  "servers.")),
      step_duration(metrics.duration("shoal_train_step_duration_seconds",
                                     "From handing a step out to its commit.")),
      checkpoint_duration(metrics.duration("shoal_checkpoint_duration_seconds",
                                           "From a checkpoint's start to its manifest.")),
      checkpoint_failures(metrics.counter("shoal_checkpoint_failures_total",
                                          "Checkpoints that could not be written.")),
      checkpoint_bytes(metrics.counter("shoal_checkpoint_bytes_total",
                                       "Bytes of the complete checkpoints written.")),
      term(metrics.gauge("shoal_coordinator_term",
                         "How often a coordinator was started on this state.")),
      servers(metrics.gauge("shoal_coordinator_members", "Members with a lease.",
                            {{"role", "server"}})),
      workers(metrics.gauge("shoal_coordinator_members", "Members with a lease.",
                            {{"role", "worker"}})),
      oldest_server_lease(metrics.gauge("shoal_coordinator_oldest_lease_seconds",
                                        "Since the member that has not renewed for longest did.",
                                        {{"role", "server"}})),
      oldest_worker_lease(metrics.gauge("shoal_coordinator_oldest_lease_seconds",
                                        "Since the member that has not renewed for longest did.",
                                        {{"role", "worker"}})),
      silently_lost_servers(metrics.counter("shoal_coordinator_members_lost_total",
                                            "Members lost without a word.", {{"role", "server"}})),
      silently_lost_workers(metrics.counter("shoal_coordinator_members_lost_total",
                                            "Members lost without a word.", {{"role", "worker"}})),
      refused_versions(metrics.counter("shoal_coordinator_refused_versions_total",
                                       "Registrations refused for their version.")) {}

void CoordinatorMetrics::OnMemberLost(proto::Role role) {
  (role == proto::ROLE_SERVER ? silently_lost_servers : silently_lost_workers).Increment();
}

void CoordinatorMetrics::OnJob(const plan::Job& job) {
  metrics.SetInfo("shoal_job_info", "1, with what the newest job is that had its turn.",
                  {{"model", std::filesystem::path(job.model).filename().string()},
                   {"precision", std::string(Name(job.service.wire_type))},
                   {"synchronization", std::string(Name(job.train.synchronization))},
                   {"assignment", std::string(Name(job.plan.assignment))}});
}

void CoordinatorMetrics::OnPhase(std::string_view phase, absl::Time now) {
  if (!phase.empty() && phase_begun.has_value()) {
    auto [found, first] = phases.try_emplace(phase, nullptr);
    if (first) {
      found->second = &metrics.counter("shoal_train_step_phase_seconds_total",
                                       "Time of steps, by what the coordinator waited for.",
                                       {{"phase", std::string(phase)}});
    }
    found->second->Increment(std::max(0.0, absl::ToDoubleSeconds(now - *phase_begun)));
  }
  phase_begun = now;
}

void CoordinatorMetrics::OnState(std::string_view now, double unix_seconds) {
  now = now.starts_with("taking references") ? "training" : now;
  static constexpr std::array kNamed = {"loading", "training",    "checkpointing", "exporting",
                                        "done",    "interrupted", "failed"};
  const bool named = std::ranges::find(kNamed, now) != kNamed.end();
  const auto set = [this](const char* label, bool is) {
    Set("shoal_job_state", "1 at the state of the newest job that had its turn.", is ? 1 : 0,
        {{"state", label}});
  };
  for (const char* label : kNamed) {
    set(label, now == label);
  }
  set("waiting", !named);
  if (now == "training" && (state == "loading" || state == "taking over")) {
    Set("shoal_train_start_timestamp_seconds",
        "When the job began to train, or went on after a member was lost.", unix_seconds);
  }
  state = now;
}

void CoordinatorMetrics::OnStep(const proto::StepEvent& step, const StepContext& context) {
  steps.Increment();
  tokens.Increment(static_cast<double>(step.tokens()));
  target_tokens.Increment(static_cast<double>(step.target_tokens()));
  flops.Increment(context.flops);
  step_duration.Observe(step.step_seconds());
  Set("shoal_train_step", "The last step committed.", static_cast<double>(step.step()));
  Set("shoal_train_target_steps", "The job's last step.",
      static_cast<double>(context.target_steps));
  Set("shoal_train_loss", "Mean loss of the last step per target token, of pairs per pair.",
      step.loss());
  Set("shoal_train_grad_norm", "Gradient norm of the last step, before clipping.",
      step.grad_norm());
  Set("shoal_train_learning_rate", "Learning rate of the last step.", step.learning_rate());
  Set("shoal_train_idle_ratio",
      "Part of all workers' time in the last step that was not spent computing.",
      step.idle_share());
  Set("shoal_train_predicted_idle_ratio", "What the planner predicted of it.",
      step.predicted_idle_share());
  if (step.mfu() > 0) {
    Set("shoal_train_mfu_ratio", "Model FLOPs utilization of the last step.", step.mfu());
  }
  Set("shoal_train_last_step_timestamp_seconds", "When the last step was committed.",
      context.unix_seconds);
}

void CoordinatorMetrics::OnValidation(const proto::ValidationEvent& validation) {
  Set("shoal_train_validation_loss",
      "Mean loss of the last validation per target token, of pairs per pair.", validation.loss());
  Set("shoal_train_best_validation_loss", "The lowest of the job's validations.",
      validation.best_loss());
}

void CoordinatorMetrics::OnCheckpoint(const CheckpointContext& checkpoint) {
  checkpoint_duration.Observe(checkpoint.seconds);
  checkpoint_bytes.Increment(static_cast<double>(checkpoint.bytes));
  Set("shoal_checkpoint_last_success_timestamp_seconds", "When the newest checkpoint was complete.",
      checkpoint.unix_seconds);
}

void CoordinatorMetrics::OnRoom(const std::optional<std::filesystem::space_info>& room) {
  if (room.has_value()) {
    Set("shoal_checkpoint_filesystem_avail_bytes",
        "Room on the disk of checkpoints after the last one.",
        static_cast<double>(room->available));
    Set("shoal_checkpoint_filesystem_size_bytes", "Size of the disk of checkpoints.",
        static_cast<double>(room->capacity));
  }
}

// Gauges are there from their first value on.
void CoordinatorMetrics::Set(const char* name, const char* help, double value,
                             const Metrics::Labels& labels) {
  auto [found, first] = gauges.try_emplace({name, labels}, nullptr);
  if (first) {
    found->second = &metrics.gauge(name, help, labels);
  }
  found->second->Set(value);
}

}  // namespace shoal::server
