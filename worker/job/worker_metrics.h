// The worker's metrics; names and meaning in docs/metrics.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/parameter_client.h"
#include "core/base/metrics.h"
#include "core/base/time_kind_clock.h"
#include "worker/peers/layer_exchange.h"

namespace shoal::worker {

class WorkerMetrics {
 public:
  explicit WorkerMetrics(Metrics& metrics);

  // The totals of Update, UpdateDevice and UpdateExchange begin at zero from here on.
  void StartJob() { before_job_.clear(); }
  void OnMicrobatch(int64_t tokens, int64_t targets);
  void OnStepFailed() { failed_steps_.Increment(); }
  // Counts workers on GPUs that would exchange, and cannot.
  void OnNoExchange() { exchange_fallbacks_.Increment(); }
  // A partition got or pushed; any thread.
  void OnGet(const std::string& transport, absl::Duration took);
  void OnPush(const std::string& transport, absl::Duration took);
  // Of the device that the job runs on.
  void OnDeviceMemory(int64_t allocated_bytes, int64_t peak_bytes, int64_t budget_bytes);
  void OnPeakFlops(double flops_per_second);
  // Counts a step's messages with one other stage, by transport or library.
  void OnStageMessages(std::string_view path, int64_t sent_bytes, int64_t received_bytes);
  // Brings counters up to these totals of the job.
  void Update(const TimeKindClock& time_kinds, const client::ClientStatistics& client);
  // For weights and gradients moved between servers and device memory: with a server's GPU,
  // otherwise directly or through the host.
  void UpdateDevice(const client::ClientStatistics& client, bool direct_get, bool direct_push);
  void UpdateExchange(const LayerExchange::Statistics& exchange);

 private:
  using Durations = std::map<std::string, Metrics::Histogram*>;  // by transport, once there are any

  void Raise(Metrics::Counter& counter, double total_of_job);
  void Observe(Durations& durations, const char* name, const char* help,
               const std::string& transport, absl::Duration took)
      ABSL_LOCKS_EXCLUDED(durations_mutex_);
  void UpdateTransport(const client::ClientStatistics::Transport& transport);

  Metrics& metrics_;
  Metrics::Counter& microbatches_;
  Metrics::Counter& tokens_;
  Metrics::Counter& target_tokens_;
  Metrics::Counter& failed_steps_;
  std::array<Metrics::Counter*, kTimeKinds> time_kinds_;
  Metrics::Counter& exchange_fallbacks_;
  Metrics::Counter& barriers_;
  Metrics::Counter& reconnects_;
  Metrics::Counter& fallbacks_;
  Metrics::Counter& switches_;
  Metrics::Counter& rereads_;
  Metrics::Counter& backup_get_bytes_;
  Metrics::Counter& backup_fallbacks_;
  Metrics::Counter& resent_;
  Metrics::Counter& duplicates_;
  std::map<const Metrics::Counter*, double> before_job_;
  absl::Mutex durations_mutex_;
  Durations gets_ ABSL_GUARDED_BY(durations_mutex_);
  Durations pushes_ ABSL_GUARDED_BY(durations_mutex_);
};

}  // namespace shoal::worker
