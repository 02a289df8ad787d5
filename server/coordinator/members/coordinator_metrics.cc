#include "server/coordinator/members/coordinator_metrics.h"

namespace shoal::server {

CoordinatorMetrics::CoordinatorMetrics(Metrics& metrics)
    : metrics(metrics),
      steps(metrics.counter("shoal_train_steps_total", "Optimizer steps committed.")),
      tokens(metrics.counter("shoal_train_tokens_total", "Tokens of committed steps.")),
      target_tokens(metrics.counter("shoal_train_target_tokens_total",
                                    "Tokens of committed steps that loss is taken on.")),
      nonfinite_steps(metrics.counter("shoal_train_nonfinite_steps_total",
                                      "Steps stopped because loss or gradients were not finite.")),
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
      loss(metrics.gauge("shoal_train_loss", "Mean loss per target token of the last step.")),
      grad_norm(metrics.gauge("shoal_train_grad_norm",
                              "Gradient norm of the last step, before clipping.")),
      learning_rate(metrics.gauge("shoal_train_learning_rate", "Learning rate of the last step.")),
      idle_ratio(metrics.gauge("shoal_train_idle_ratio",
                               "Part of all workers' time in the last step that was not spent "
                               "computing.")),
      predicted_idle_ratio(
          metrics.gauge("shoal_train_predicted_idle_ratio", "What the planner predicted of it.")),
      last_step_timestamp(metrics.gauge("shoal_train_last_step_timestamp_seconds",
                                        "When the last step was committed.")),
      step_duration(metrics.latency("shoal_train_step_duration_seconds",
                                    "From handing a step out to its commit.")),
      checkpoint_duration(metrics.latency("shoal_checkpoint_duration_seconds",
                                          "From a checkpoint's start to its manifest.")),
      checkpoint_failures(metrics.counter("shoal_checkpoint_failures_total",
                                          "Checkpoints that could not be written.")),
      last_checkpoint_timestamp(metrics.gauge("shoal_checkpoint_last_success_timestamp_seconds",
                                              "When the newest checkpoint was complete.")),
      term(metrics.gauge("shoal_coordinator_term",
                         "How often a coordinator was started on this state.")),
      servers(metrics.gauge("shoal_coordinator_members", "Members with a lease.",
                            {{"role", "server"}})),
      workers(metrics.gauge("shoal_coordinator_members", "Members with a lease.",
                            {{"role", "worker"}})),
      server_lease_expiries(metrics.counter("shoal_coordinator_lease_expiries_total",
                                            "Members lost silently.", {{"role", "server"}})),
      worker_lease_expiries(metrics.counter("shoal_coordinator_lease_expiries_total",
                                            "Members lost silently.", {{"role", "worker"}})) {}

void CoordinatorMetrics::OnStep(const proto::StepEvent& step, double unix_seconds) {
  steps.Increment();
  tokens.Increment(static_cast<double>(step.tokens()));
  target_tokens.Increment(static_cast<double>(step.target_tokens()));
  loss.Set(step.loss());
  grad_norm.Set(step.grad_norm());
  learning_rate.Set(step.learning_rate());
  if (step.mfu() > 0) {
    metrics.gauge("shoal_train_mfu_ratio", "Model FLOPs utilization of the last step.")
        .Set(step.mfu());
  }
  idle_ratio.Set(step.idle_share());
  predicted_idle_ratio.Set(step.predicted_idle_share());
  step_duration.Observe(step.step_seconds());
  last_step_timestamp.Set(unix_seconds);
}

}  // namespace shoal::server
