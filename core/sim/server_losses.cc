#include "core/sim/server_losses.h"

#include <cmath>

#include "core/base/check.h"

namespace shoal::sim {
namespace {

constexpr double kSecondsOfHour = 3600;
constexpr double kGradientBytes = 4;     // of a parameter, to each backup
constexpr double kDetectionSeconds = 1;  // until a lost server is known to be

}  // namespace

LossCosts CompareLossCosts(const plan::ClusterSpec& cluster, const ServedJob& job) {
  const plan::Losses& losses = cluster.losses;
  SHOAL_CHECK(losses.server_mtbf_hours > 0 && job.servers > 0 && job.step_seconds > 0);
  const double between =
      losses.server_mtbf_hours * kSecondsOfHour / static_cast<double>(job.servers);
  const double parameters = static_cast<double>(job.parameters) / static_cast<double>(job.servers);
  const auto backups = static_cast<double>(job.replicas - 1);
  const double sent = kGradientBytes * parameters * backups / cluster.ServerBytesPerSecond();
  return {
      .seconds_between = between,
      .checkpoints =
          std::sqrt(2 * losses.checkpoint_seconds / between) + losses.restore_seconds / between,
      .checkpoint_every_seconds = std::sqrt(2 * losses.checkpoint_seconds * between),
      .replicas = sent / job.step_seconds + (job.step_seconds / 2 + kDetectionSeconds) / between,
      .copies = job.replicas,
      .replica_bytes = (job.replicas - 1) * job.backup_bytes / job.servers,
  };
}

}  // namespace shoal::sim
