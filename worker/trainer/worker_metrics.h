// The worker's metrics; names and meaning in docs/metrics.md.
#pragma once

#include <array>
#include <map>
#include <string>

#include "client/parameter_client.h"
#include "common/metrics.h"
#include "common/phase_clock.h"

namespace shoal::worker {

class WorkerMetrics {
 public:
  explicit WorkerMetrics(Metrics& metrics);

  void OnMicrobatch(int64_t tokens, int64_t targets);
  void OnStepFailed() { failed_steps_.Increment(); }
  // Brings counters up to these totals.
  void Update(const PhaseClock& phases, const client::ClientStatistics& client);

 private:
  // A counter that follows a total kept elsewhere.
  struct Follower {
    Metrics::Counter* counter = nullptr;
    double last = 0;
    void Follow(double total) {
      if (total > last) {
        counter->Increment(total - last);
        last = total;
      }
    }
  };
  Follower Total(const std::string& name, const std::string& help,
                 const Metrics::Labels& labels = {});
  Follower& ByTransport(std::map<std::string, Follower>& followers, const std::string& name,
                        const std::string& help, const std::string& transport);

  Metrics& metrics_;
  Metrics::Counter& microbatches_;
  Metrics::Counter& tokens_;
  Metrics::Counter& target_tokens_;
  Metrics::Counter& failed_steps_;
  std::array<Follower, kPhases> phases_;
  Follower meetings_;
  Follower reconnects_;
  Follower fallbacks_;
  Follower switches_;
  Follower rereads_;
  Follower resent_;
  Follower duplicates_;
  std::map<std::string, Follower> get_bytes_;
  std::map<std::string, Follower> push_bytes_;
  std::map<std::string, Follower> rests_;
};

}  // namespace shoal::worker
