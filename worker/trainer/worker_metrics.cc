#include "worker/trainer/worker_metrics.h"

namespace shoal::worker {

WorkerMetrics::WorkerMetrics(Metrics& metrics)
    : metrics_(metrics),
      microbatches_(metrics.counter("shoal_worker_microbatches_total", "Microbatches run.")),
      tokens_(metrics.counter("shoal_worker_tokens_total", "Tokens run, targets or not.")),
      target_tokens_(metrics.counter("shoal_worker_target_tokens_total",
                                     "Tokens run on which loss is taken.")),
      failed_steps_(metrics.counter("shoal_worker_failed_steps_total",
                                    "Attempts at a step that this worker could not finish.")),
      meetings_(
          Total("shoal_client_meetings_total", "Meetings with all other workers at a layer.")),
      reconnects_(
          Total("shoal_client_reconnects_total", "Tries to make a broken data connection anew.")),
      fallbacks_(Total("shoal_client_fallbacks_total",
                       "Data connections over another than the first transport.")),
      switches_(Total("shoal_client_transport_switches_total",
                      "Servers that were reached over another transport than before.")),
      rereads_(Total("shoal_client_rereads_total",
                     "Partitions read again because another version was found.")),
      resent_(
          Total("shoal_client_resent_pushes_total", "Pushes sent again after a connection broke.")),
      duplicates_(Total("shoal_client_duplicate_pushes_total",
                        "Pushes sent again that the server had applied already.")) {
  for (size_t i = 0; i < kPhases; ++i) {
    phases_[i] = Total("shoal_worker_phase_seconds_total", "Time of the compute thread by phase.",
                       {{"phase", std::string(kPhaseNames[i])}});
  }
}

WorkerMetrics::Follower WorkerMetrics::Total(const std::string& name, const std::string& help,
                                             const Metrics::Labels& labels) {
  return {.counter = &metrics_.counter(name, help, labels)};
}

WorkerMetrics::Follower& WorkerMetrics::ByTransport(std::map<std::string, Follower>& followers,
                                                    const std::string& name,
                                                    const std::string& help,
                                                    const std::string& transport) {
  auto [entry, fresh] = followers.try_emplace(transport);
  if (fresh) {
    entry->second = Total(name, help, {{"transport", transport}});
  }
  return entry->second;
}

void WorkerMetrics::OnMicrobatch(int64_t tokens, int64_t targets) {
  microbatches_.Increment();
  tokens_.Increment(static_cast<double>(tokens));
  target_tokens_.Increment(static_cast<double>(targets));
}

void WorkerMetrics::Update(const PhaseClock& phases, const client::ClientStatistics& client) {
  for (size_t i = 0; i < kPhases; ++i) {
    phases_[i].Follow(phases.all()[i]);
  }
  meetings_.Follow(static_cast<double>(client.meetings));
  reconnects_.Follow(static_cast<double>(client.reconnects));
  fallbacks_.Follow(static_cast<double>(client.fallbacks));
  switches_.Follow(static_cast<double>(client.switches));
  rereads_.Follow(static_cast<double>(client.rereads));
  resent_.Follow(static_cast<double>(client.resent));
  duplicates_.Follow(static_cast<double>(client.duplicates));
  for (const client::ClientStatistics::Transport& transport : client.transports) {
    ByTransport(get_bytes_, "shoal_client_get_bytes_total", "Bytes of weights read.",
                transport.name)
        .Follow(static_cast<double>(transport.get_bytes));
    ByTransport(push_bytes_, "shoal_client_push_bytes_total", "Bytes of gradients written.",
                transport.name)
        .Follow(static_cast<double>(transport.push_bytes));
    ByTransport(rests_, "shoal_client_transport_rests_total",
                "Times a transport was left out for a while because it kept failing.",
                transport.name)
        .Follow(static_cast<double>(transport.rests));
  }
}

}  // namespace shoal::worker
