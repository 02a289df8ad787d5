#include "worker/job/worker_metrics.h"

#include <string>

#include "absl/strings/ascii.h"

namespace shoal::worker {

WorkerMetrics::WorkerMetrics(Metrics& metrics)
    : metrics_(metrics),
      microbatches_(metrics.counter("shoal_worker_microbatches_total", "Microbatches run.")),
      tokens_(metrics.counter("shoal_worker_tokens_total", "Tokens run, targets or not.")),
      target_tokens_(metrics.counter("shoal_worker_target_tokens_total",
                                     "Tokens run on which loss is taken.")),
      failed_steps_(metrics.counter("shoal_worker_failed_steps_total",
                                    "Attempts at a step that this worker could not finish.")),
      exchange_fallbacks_(
          metrics.counter("shoal_worker_exchange_fallbacks_total",
                          "Jobs in which workers on GPUs met over the servers, or "
                          "stages through the host, for want of a path between GPUs.")),
      barriers_(
          metrics.counter("shoal_client_barriers_total", "Barriers of all workers at a layer.")),
      reconnects_(metrics.counter("shoal_client_reconnects_total",
                                  "Tries to recreate a broken data connection.")),
      fallbacks_(metrics.counter("shoal_client_fallbacks_total",
                                 "Data connections over another than the first transport.")),
      switches_(metrics.counter("shoal_client_transport_switches_total",
                                "Servers that were reached over another transport than before.")),
      rereads_(metrics.counter("shoal_client_rereads_total",
                               "Partitions read again because another version was found.")),
      backup_get_bytes_(metrics.counter("shoal_client_backup_get_bytes_total",
                                        "Bytes of weights read from servers that back up what "
                                        "they are of (service.read_replicas).")),
      backup_fallbacks_(metrics.counter("shoal_client_backup_fallbacks_total",
                                        "Partitions read from their primary because the backup "
                                        "was lost or had another version.")),
      resent_(metrics.counter("shoal_client_resent_pushes_total",
                              "Pushes sent again after a connection broke.")),
      duplicates_(metrics.counter("shoal_client_duplicate_pushes_total",
                                  "Pushes sent again that the server had applied already.")) {
  for (size_t i = 0; i < kTimeKinds; ++i) {
    time_kinds_[i] =
        &metrics.counter("shoal_worker_phase_seconds_total", "Time of the compute thread by phase.",
                         {{"phase", std::string(kTimeKindNames[i])}});
  }
}

void WorkerMetrics::OnMicrobatch(int64_t tokens, int64_t targets) {
  microbatches_.Increment();
  tokens_.Increment(static_cast<double>(tokens));
  target_tokens_.Increment(static_cast<double>(targets));
}

void WorkerMetrics::OnGet(const std::string& transport, absl::Duration took) {
  Observe(gets_, "shoal_client_get_duration_seconds",
          "Of the read that brought a partition of the weights.", transport, took);
}

void WorkerMetrics::OnPush(const std::string& transport, absl::Duration took) {
  Observe(pushes_, "shoal_client_push_duration_seconds",
          "From sending a partition's gradient, the last time, until the server has it in its sum.",
          transport, took);
}

void WorkerMetrics::Observe(Durations& durations, const char* name, const char* help,
                            const std::string& transport, absl::Duration took) {
  Metrics::Histogram* histogram = nullptr;
  {
    absl::MutexLock lock(&durations_mutex_);
    const auto [found, first] = durations.try_emplace(transport, nullptr);
    if (first) {
      found->second = &metrics_.latency(name, help, {{"transport", transport}});
    }
    histogram = found->second;
  }
  histogram->Observe(absl::ToDoubleSeconds(took));
}

void WorkerMetrics::OnDeviceMemory(int64_t allocated_bytes, int64_t peak_bytes,
                                   int64_t budget_bytes) {
  const auto set = [this](const char* kind, int64_t bytes) {
    metrics_
        .gauge("shoal_worker_device_memory_bytes", "Memory of the worker's GPU that a job uses.",
               {{"kind", kind}})
        .Set(static_cast<double>(bytes));
  };
  set("allocated", allocated_bytes);
  set("peak", peak_bytes);
  set("budget", budget_bytes);
}

void WorkerMetrics::OnPeakFlops(double flops_per_second) {
  metrics_
      .gauge("shoal_worker_peak_flops",
             "Floating-point operations a second that the worker's device computes at most.")
      .Set(flops_per_second);
}

void WorkerMetrics::OnStageMessages(std::string_view path, int64_t sent_bytes,
                                    int64_t received_bytes) {
  // "nccl" of "NCCL 2.28.9"
  std::string name(path.substr(0, path.find(' ')));
  absl::AsciiStrToLower(&name);
  const auto add = [&](const std::string& direction, int64_t bytes) {
    metrics_
        .counter("shoal_worker_stage_bytes_total", "Bytes of messages between stages.",
                 {{"direction", direction}, {"path", name}})
        .Increment(static_cast<double>(bytes));
  };
  add("send", sent_bytes);
  add("receive", received_bytes);
}

void WorkerMetrics::Raise(Metrics::Counter& counter, double total_of_job) {
  const auto before = before_job_.try_emplace(&counter, counter.Value()).first;
  RaiseTo(counter, before->second + total_of_job);
}

void WorkerMetrics::Update(const TimeKindClock& time_kinds,
                           const client::ClientStatistics& client) {
  for (size_t i = 0; i < kTimeKinds; ++i) {
    Raise(*time_kinds_[i], time_kinds.all()[i]);
  }
  Raise(barriers_, static_cast<double>(client.barriers));
  Raise(reconnects_, static_cast<double>(client.reconnects));
  Raise(fallbacks_, static_cast<double>(client.fallbacks));
  Raise(switches_, static_cast<double>(client.switches));
  Raise(rereads_, static_cast<double>(client.rereads));
  Raise(backup_get_bytes_, static_cast<double>(client.backup_get_bytes));
  Raise(backup_fallbacks_, static_cast<double>(client.backup_fallbacks));
  Raise(resent_, static_cast<double>(client.resent));
  Raise(duplicates_, static_cast<double>(client.duplicates));
  for (const client::ClientStatistics::Transport& transport : client.transports) {
    UpdateTransport(transport);
  }
}

void WorkerMetrics::UpdateDevice(const client::ClientStatistics& client, bool direct_get,
                                 bool direct_push) {
  const auto raise = [&](std::string direction, std::string path, int64_t bytes) {
    Raise(metrics_.counter("shoal_worker_device_bytes_total",
                           "Bytes between servers and the memory of the worker's GPU: from GPU "
                           "to GPU, directly, or through pinned memory of the host.",
                           {{"direction", std::move(direction)}, {"path", std::move(path)}}),
          static_cast<double>(bytes));
  };
  client::ClientStatistics::Transport all;
  for (const client::ClientStatistics::Transport& transport : client.transports) {
    all.get_bytes += transport.get_bytes;
    all.push_bytes += transport.push_bytes;
    all.gpu_get_bytes += transport.gpu_get_bytes;
    all.gpu_push_bytes += transport.gpu_push_bytes;
  }
  raise("get", "gpu", all.gpu_get_bytes);
  raise("get", direct_get ? "direct" : "pinned", all.get_bytes - all.gpu_get_bytes);
  raise("push", "gpu", all.gpu_push_bytes);
  raise("push", direct_push ? "direct" : "pinned", all.push_bytes - all.gpu_push_bytes);
}

void WorkerMetrics::UpdateExchange(const LayerExchange::Statistics& exchange) {
  const auto raise = [&](const std::string& operation, int64_t calls, int64_t bytes) {
    Raise(metrics_.counter("shoal_worker_collectives_total",
                           "Collectives with all other workers at a layer.",
                           {{"operation", operation}}),
          static_cast<double>(calls));
    Raise(metrics_.counter("shoal_worker_collective_bytes_total",
                           "Bytes from other workers (all-gather) or to them (reduce-scatter).",
                           {{"operation", operation}}),
          static_cast<double>(bytes));
  };
  raise("all_gather", exchange.all_gathers, exchange.gathered_bytes);
  raise("reduce_scatter", exchange.reduce_scatters, exchange.reduced_bytes);
}

void WorkerMetrics::UpdateTransport(const client::ClientStatistics::Transport& transport) {
  const auto raise = [&](const std::string& name, const std::string& help, int64_t total,
                         Metrics::Labels labels = {}) {
    labels.emplace("transport", transport.name);
    Raise(metrics_.counter(name, help, labels), static_cast<double>(total));
  };
  raise("shoal_client_get_bytes_total", "Bytes of weights read.", transport.get_bytes);
  raise("shoal_client_push_bytes_total", "Bytes of gradients written.", transport.push_bytes);
  raise("shoal_client_transport_rests_total",
        "Times a transport was left out for a while because it kept failing.", transport.rests);
  for (const auto& [route, ranges] : transport.memory.gpu_ranges) {
    raise("shoal_client_gpu_ranges_total",
          "Ranges of GPU memory, by how a device reaches them; refused: not at all.", ranges,
          {{"route", route}});
  }
  for (const auto& [kind, errors] : transport.memory.device_errors) {
    Raise(metrics_.counter("shoal_verbs_errors_total",
                           "Operations that RDMA devices reported as failed.", {{"kind", kind}}),
          static_cast<double>(errors));
  }
}

}  // namespace shoal::worker
