#include "server/coordinator/step/step_timing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "fmt/format.h"

namespace shoal::server {
namespace {

// Names nobody for waits below this share of the step.
constexpr double kWorthNaming = 0.05;

struct Culprit {
  std::string name;
  double share = 0;  // of the step
};

std::optional<Culprit> OtherWorker(size_t culprit, size_t self, double share) {
  if (culprit == self) {
    return std::nullopt;
  }
  return Culprit{.name = fmt::format("worker-{}", culprit), .share = share};
}

// The worker that made others wait at layers waited least itself.
size_t LeastLayerWait(const std::vector<proto::FinishedReport>& reports) {
  return static_cast<size_t>(std::min_element(reports.begin(), reports.end(),
                                              [](const auto& a, const auto& b) {
                                                return a.layer_wait_seconds() <
                                                       b.layer_wait_seconds();
                                              }) -
                             reports.begin());
}

size_t LastToReport(const std::vector<absl::Time>& reported_at) {
  return static_cast<size_t>(std::max_element(reported_at.begin(), reported_at.end()) -
                             reported_at.begin());
}

// The server whose weights came most slowly.
std::optional<Culprit> SlowestServer(const proto::FinishedReport& report, double share) {
  const auto& waits = report.get_wait_by_server();
  if (waits.empty()) {
    return std::nullopt;
  }
  const auto slowest = std::max_element(waits.begin(), waits.end());
  return Culprit{.name = fmt::format("server-{}", slowest - waits.begin()), .share = share};
}

// The stage of its group for which it waited longest.
std::optional<Culprit> SlowestNeighbour(const StepTiming& timing, size_t worker, double share) {
  const auto& waits = timing.reports[worker].neighbour_wait_seconds();
  const auto slowest =
      static_cast<size_t>(std::max_element(waits.begin(), waits.end()) - waits.begin());
  if (slowest >= timing.groups.stages()) {
    return std::nullopt;
  }
  return OtherWorker(timing.groups.WorkerAt(timing.groups.GroupOf(worker), slowest), worker, share);
}

// `last`: the worker that all others waited for.
std::optional<Culprit> WaitedFor(const StepTiming& timing, size_t worker, size_t last,
                                 const proto::LastStep& shares) {
  const double layer_or_step = std::max(shares.layer_wait(), shares.step_wait());
  const double server = std::max(shares.get_wait(), shares.push_wait());
  if (std::max({layer_or_step, server, shares.neighbour_wait()}) < kWorthNaming) {
    return std::nullopt;
  }
  if (shares.neighbour_wait() > std::max(layer_or_step, server)) {
    return SlowestNeighbour(timing, worker, shares.neighbour_wait());
  }
  if (server > layer_or_step) {
    // Waits for pushes are not told by server.
    return shares.push_wait() > shares.get_wait() ? std::nullopt
                                                  : SlowestServer(timing.reports[worker], server);
  }
  return OtherWorker(last, worker, layer_or_step);
}

bool AreSame(const proto::DataConnection& a, const proto::DataConnection& b) {
  return a.peer() == b.peer() && a.transport() == b.transport() && a.reason() == b.reason();
}

}  // namespace

double IdleShare(const StepTiming& timing) {
  if (timing.reports.empty() || !(timing.seconds > 0)) {
    return 0;
  }
  double busy = 0;
  for (const proto::FinishedReport& report : timing.reports) {
    busy += report.busy_seconds();
  }
  const double share = 1 - busy / (timing.seconds * static_cast<double>(timing.reports.size()));
  return share > 0 ? std::min(share, 1.0) : 0.0;
}

double Utilization(double flops, const StepTiming& timing) {
  double peak = 0;
  for (const proto::FinishedReport& report : timing.reports) {
    if (!(report.peak_flops() > 0)) {
      return 0;
    }
    peak += report.peak_flops();
  }
  const double share = flops / (timing.seconds * peak);
  return timing.seconds > 0 && std::isfinite(share) ? share : 0;
}

void DescribeStep(const StepTiming& timing, std::vector<proto::LastStep>& last_steps) {
  last_steps.resize(timing.reports.size());
  const size_t last_worker = timing.synchronization == plan::Synchronization::kLayer
                                 ? LeastLayerWait(timing.reports)
                                 : LastToReport(timing.reported_at);
  for (size_t worker = 0; worker < timing.reports.size(); ++worker) {
    const proto::FinishedReport& report = timing.reports[worker];
    const auto share = [&](double seconds) {
      return timing.seconds > 0 && seconds > 0 ? std::min(seconds / timing.seconds, 1.0) : 0.0;
    };
    proto::LastStep& last = last_steps[worker];
    last.set_step(timing.step);
    last.set_seconds(timing.seconds);
    last.set_compute(share(report.busy_seconds()));
    last.set_get_wait(share(report.get_wait_seconds()));
    last.set_push_wait(share(report.push_wait_seconds()));
    last.set_layer_wait(share(report.layer_wait_seconds()));
    const auto& neighbour_waits = report.neighbour_wait_seconds();
    last.set_neighbour_wait(
        share(std::accumulate(neighbour_waits.begin(), neighbour_waits.end(), 0.0)));
    last.set_transfer_wait(share(report.transfer_wait_seconds()));
    const double rest = 1 - last.compute() - last.get_wait() - last.push_wait() -
                        last.layer_wait() - last.neighbour_wait() - last.transfer_wait();
    last.set_step_wait(timing.seconds > 0 ? std::max(0.0, rest) : 0.0);
    const auto culprit = WaitedFor(timing, worker, last_worker, last);
    last.set_waited_for(culprit.has_value()
                            ? fmt::format("{} ({:.2f} of the step)", culprit->name, culprit->share)
                            : "");
  }
}

void TakeConnections(const proto::FinishedReport& report, proto::LastStep& last) {
  if (!std::ranges::equal(report.connections(), last.connections(), AreSame)) {
    *last.mutable_connections() = report.connections();
  }
}

}  // namespace shoal::server
