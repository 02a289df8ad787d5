#include "tests/simulation/scenario.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/match.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "tests/simulation/sim_world.h"

namespace shoal::simulation {
namespace {

constexpr uint64_t kStream = 19;
constexpr Nanoseconds kSecond = 1'000'000'000;
// After the last fault, and a lease.
constexpr Nanoseconds kSettled = 2 * kSecond;

class Drawer {
 public:
  explicit Drawer(uint64_t seed) : random_(seed, kStream) {}
  bool Chance(double probability) { return random_.Uniform() < probability; }
  int64_t Between(int64_t low, int64_t high) { return random_.Between(low, high); }
  double LogUniform(double low, double high) {
    return low * std::pow(high / low, random_.Uniform());
  }
  Nanoseconds Seconds(double low, double high) {
    return static_cast<Nanoseconds>(LogUniform(low, high) * 1e9);
  }

 private:
  Random random_;
};

SimOptions DrawOptions(uint64_t seed, Drawer& draw) {
  SimOptions options = {.seed = seed};
  options.stages = draw.Chance(0.3) ? static_cast<int>(draw.Between(2, 3)) : 1;
  options.servers = static_cast<int>(draw.Between(1, 4));
  options.workers = static_cast<int>(draw.Between(1, options.stages > 1 ? 2 : 4)) * options.stages;
  options.steps = draw.Between(1, 8);
  options.samples = draw.Between(1, 12);
  options.checkpoint_every = draw.Between(0, 3);
  options.checkpoint_seconds = draw.Chance(0.2) ? draw.LogUniform(0.02, 1) : 0;
  options.stop_after = draw.Chance(0.15) ? draw.Between(1, options.steps) : 0;
  options.layer = options.stages == 1 && draw.Chance(0.2);
  options.draw = options.stages == 1 && !options.layer && draw.Chance(0.5);
  options.exact = draw.Chance(0.5);
  options.trace = draw.Chance(0.1);
  options.lease_seconds = draw.LogUniform(0.2, 10);
  options.start_timeout_seconds = draw.LogUniform(5, 30);
  options.recovery_timeout_seconds = draw.LogUniform(5, 30);
  options.max_restarts = draw.Between(0, 5);
  options.stays = draw.Chance(0.6);
  options.jobs = options.stays && draw.Chance(0.4) ? static_cast<int>(draw.Between(2, 3)) : 1;
  options.failed_report = draw.Chance(0.1) ? draw.LogUniform(0.005, 0.1) : 0;
  options.repeated_report = draw.Chance(0.3) ? 0.3 : 0;
  options.early_report = draw.Chance(0.1) ? draw.LogUniform(0.01, 0.2) : 0;
  options.slow_worker = draw.Chance(0.3) ? draw.LogUniform(0.01, 0.2) : 0;
  options.sums = options.stages == 1 && draw.Chance(0.1);
  options.min_workers = draw.Chance(0.2) ? static_cast<int>(draw.Between(1, options.workers)) : 1;
  if (options.stages == 1 && !options.layer && draw.Chance(0.2)) {
    options.validate_every = draw.Between(1, 3);
    options.keep_best = draw.Chance(0.5);
    options.patience = draw.Chance(0.3) ? draw.Between(1, 3) : 0;
  }
  options.spares = draw.Chance(0.3) ? static_cast<int>(draw.Between(1, 2)) : 0;
  if (draw.Chance(0.3)) {
    options.on_server_loss =
        draw.Chance(0.5) ? plan::OnServerLoss::kFail : plan::OnServerLoss::kRestore;
  }
  return options;
}

std::string AnyServer(const SimOptions& options, Drawer& draw) {
  return fmt::format("server-{}", draw.Between(0, options.servers - 1));
}

std::string AnyWorker(const SimOptions& options, Drawer& draw) {
  return fmt::format("worker-{}", draw.Between(0, options.workers + options.spares - 1));
}

std::string AnyProcess(const SimOptions& options, Drawer& draw) {
  const int64_t pick = draw.Between(0, 1 + options.servers + options.workers + options.spares);
  if (pick <= 1) {
    return "coordinator";
  }
  return pick < 2 + options.servers ? fmt::format("server-{}", pick - 2)
                                    : fmt::format("worker-{}", pick - 2 - options.servers);
}

std::string TargetOf(FaultKind kind, const SimOptions& options, Drawer& draw) {
  switch (kind) {
    case FaultKind::kPowerLoss:
    case FaultKind::kSucceed:
      return "coordinator";
    case FaultKind::kDiskFull:
    case FaultKind::kDiskSlow:
      return draw.Chance(0.5) ? "coordinator" : AnyServer(options, draw);
    case FaultKind::kDrain:
      return draw.Chance(0.5) ? AnyWorker(options, draw) : AnyServer(options, draw);
    case FaultKind::kStop:
      return fmt::format("job-{}", draw.Between(0, options.jobs - 1));
    case FaultKind::kCut:
    case FaultKind::kClog:
      return AnyProcess(options, draw) + ">" + AnyProcess(options, draw);
    default:
      return AnyProcess(options, draw);
  }
}

int64_t AmountOf(FaultKind kind, bool quiet, Drawer& draw) {
  switch (kind) {
    case FaultKind::kKill:
    case FaultKind::kPowerLoss:
      return !quiet && draw.Chance(0.1) ? kNever : draw.Seconds(1e-3, 5);
    case FaultKind::kDrift:
      return draw.Between(-50'000, 50'000);
    case FaultKind::kStop:
      return 0;
    default:
      return draw.Seconds(1e-3, 30);
  }
}

// All that begins is over by `quiet_from`.
std::vector<Fault> DrawMoments(const SimOptions& options, std::optional<Nanoseconds> quiet_from,
                               Nanoseconds horizon, Drawer& draw) {
  std::vector<Fault> moments;
  for (int number = static_cast<int>(FaultKind::kKill);
       number < static_cast<int>(FaultKind::kScale); ++number) {
    const auto kind = static_cast<FaultKind>(number);
    const bool rare = kind == FaultKind::kStop || kind == FaultKind::kSucceed;
    if (!draw.Chance(rare ? 0.1 : 0.3)) {
      continue;
    }
    const int64_t count = draw.Between(1, 3);
    for (int64_t k = 0; k < count; ++k) {
      Fault fault = {.kind = kind,
                     .target = TargetOf(kind, options, draw),
                     .at = draw.Between(0, horizon),
                     .amount = AmountOf(kind, quiet_from.has_value(), draw)};
      const bool lasts = kind != FaultKind::kDrift && kind != FaultKind::kJump;
      if (quiet_from.has_value() && lasts) {
        fault.amount = std::min(fault.amount, *quiet_from - fault.at);
      }
      moments.push_back(std::move(fault));
      if (kind == FaultKind::kCut && draw.Chance(0.5)) {  // both ways
        const size_t arrow = moments.back().target.find('>');
        Fault back = moments.back();
        back.target = back.target.substr(arrow + 1) + ">" + back.target.substr(0, arrow);
        moments.push_back(std::move(back));
      }
    }
  }
  return moments;
}

bool HasManyPartitions(const SimOptions& options) { return options.model_growth > 1; }

// In some seeds, from numbers of their own: the others are as they were. Many partitions, which
// move one by one at first, and steps enough between.
void DrawManyPartitions(uint64_t seed, SimOptions& options) {
  Drawer draw(seed + (uint64_t{1} << 42));
  if (!draw.Chance(0.05)) {
    return;
  }
  options.model_growth = 4;
  options.servers = static_cast<int>(draw.Between(2, 4));
  options.workers = static_cast<int>(draw.Between(1, 2));
  options.stages = 1;
  options.layer = false;
  options.steps = draw.Between(10, 30);
  options.samples = draw.Between(1, 4);
  options.stop_after = 0;
  options.checkpoint_every = 0;
  options.checkpoint_seconds = 0;
  options.jobs = 1;
  options.min_workers = 1;
}

// In some seeds, and those with many partitions, as above.
void DrawScaling(uint64_t seed, Nanoseconds horizon, Scenario& scenario) {
  Drawer draw(seed + (uint64_t{1} << 40));
  SimOptions& options = scenario.options;
  const bool waves = HasManyPartitions(options);
  if (!draw.Chance(0.3) && !waves) {
    return;
  }
  options.spare_servers = static_cast<int>(draw.Between(0, 3));
  Nanoseconds wished = 0;
  for (int64_t wishes = draw.Between(1, 4); wishes > 0; --wishes) {
    scenario.faults.moments.push_back(
        {.kind = FaultKind::kScale,
         .target = fmt::format("job-{}", draw.Between(0, options.jobs - 1)),
         .at = draw.Between(0, std::min<Nanoseconds>(horizon, waves ? kSecond / 2 : 2 * kSecond)),
         .amount = draw.Between(1, options.servers + options.spare_servers)});
    wished = scenario.faults.moments.back().at;
  }
  options.min_servers = draw.Chance(0.1) ? static_cast<int>(draw.Between(1, options.servers)) : 1;
  options.elastic = options.stays && draw.Chance(0.2);
  for (int64_t removed = draw.Between(0, 2); removed > 0; --removed) {
    scenario.faults.moments.push_back(
        {.kind = FaultKind::kRemove,
         .target =
             fmt::format("server-{}", draw.Between(0, options.servers + options.spare_servers - 1)),
         .at = draw.Between(0, std::min<Nanoseconds>(horizon, 2 * kSecond))});
  }
  options.wave_bytes = draw.Chance(0.5) ? draw.Between(1, 2000) : options.wave_bytes;
  options.wave_bytes = waves ? 1 : options.wave_bytes;
  options.move_rate = draw.Chance(0.4) || waves ? int64_t{1} << 40 : 0;  // no wave waits for it
  if (draw.Chance(0.3)) {                                                // about when state moves
    scenario.faults.moments.push_back({.kind = FaultKind::kDrain,
                                       .target = AnyWorker(options, draw),
                                       .at = wished + draw.Seconds(1e-3, 0.3),
                                       .amount = kSecond});
  }
}

// In some seeds, from numbers of their own, as above.
void DrawReplicas(uint64_t seed, SimOptions& options) {
  Drawer draw(seed + (uint64_t{1} << 41));
  if (options.servers > 1 && draw.Chance(0.3) && !HasManyPartitions(options)) {
    options.replicas = static_cast<int>(draw.Between(2, std::min(3, options.servers)));
    options.read_replicas = draw.Chance(0.5);
  }
}

std::string EndOf(const SimCommand::Followed& job) {
  if (!job.end.has_value()) {
    return job.refused.empty() ? (job.lost ? "lost" : "followed still") : "refused";
  }
  if (job.end->has_failed()) {
    return "failed: " + job.end->failed().message();
  }
  return job.end->done().interrupted() ? "interrupted" : "done";
}

// When a call of the last faults knows that its connection broke.
Nanoseconds LastAnswer(Nanoseconds quiet_from, const std::vector<Fault>& faults) {
  Nanoseconds longest = 0;
  for (const Fault& fault : faults) {
    longest = std::max(longest, fault.kind < FaultKind::kBuggify ? fault.amount : 0);
  }
  return quiet_from + longest;
}

// Members that are there again are not waited for in vain, nor does a step fail again and again.
bool MayFailAlone(const SimCommand::Followed& job, const Scenario& scenario,
                  const std::vector<Fault>& faults) {
  const SimOptions& options = scenario.options;
  const auto says = [&message = job.end->failed().message()](const char* reason) {
    return absl::StrContains(message, reason);
  };
  const Nanoseconds settled = kSettled + static_cast<Nanoseconds>(options.lease_seconds * kSecond);
  if (says("failed 3 times")) {
    const bool lies = options.failed_report > 0 || options.early_report > 0;
    return lies || says(" pushes of partition ") || !scenario.quiet_from.has_value() ||
           job.ended < LastAnswer(*scenario.quiet_from, faults) + settled;
  }
  const bool ended = !options.stays && !says("to be ready");  // and nobody starts them again
  return says("still waiting for") &&
         (ended || !scenario.quiet_from.has_value() ||
          job.ended < LastAnswer(*scenario.quiet_from, faults) + settled);
}

// A job fails only by what is lost, full or too slow, or by what workers and servers say wrongly;
// after a succession also where the earlier coordinator has completed a checkpoint that the later
// one, which had begun from the one before, is to make.
bool MayFail(const SimCommand::Followed& job, const SimOptions& options, bool has_successor) {
  constexpr std::array kReasons = {"lost server", "no longer holds the job", "cannot be recovered",
                                   "lost worker", "no space left"};
  const std::string& message = job.end->failed().message();
  const auto says = [&](const char* reason) { return absl::StrContains(message, reason); };
  const bool waits_for_servers = options.stays && options.max_restarts > 0 && !job.stopped &&
                                 job.job->description().RestoresOnServerLoss();
  return std::ranges::any_of(kReasons, says) || (says("is to leave") && !waits_for_servers) ||
         (has_successor && says("has a complete checkpoint"));
}

Outcome Run(const Scenario& scenario, Faults faults) {
  SimWorld world(scenario.options, std::move(faults));
  const bool over = world.Run();
  world.CheckEnds();
  Outcome outcome = {.violations = world.violations(),
                     .faults = world.faults(),
                     .trace = world.trace(),
                     .events = world.run_events()};
  if (!over && scenario.quiet_from.has_value()) {
    outcome.violations.push_back(fmt::format("I17: it has not ended {:.0f} s after the last fault",
                                             absl::ToDoubleSeconds(scenario.options.limit) -
                                                 static_cast<double>(*scenario.quiet_from) * 1e-9));
  }
  for (const SimCommand::Followed& job : world.command().jobs()) {
    outcome.ends.push_back(EndOf(job));
    if (job.end.has_value() && job.end->has_failed() &&
        !MayFail(job, scenario.options, world.has_successor()) &&
        !MayFailAlone(job, scenario, outcome.faults)) {
      outcome.violations.push_back(
          fmt::format("I19: {} fails: {}", job.id, job.end->failed().message()));
    }
    if (!job.stopped && job.end.has_value() && job.end->done().interrupted()) {
      outcome.violations.push_back(
          fmt::format("I23: nobody stopped {}, which is interrupted", job.id));
    }
  }
  return outcome;
}

}  // namespace

Scenario DrawScenario(uint64_t seed) {
  Drawer draw(seed);
  Scenario scenario;
  scenario.options = DrawOptions(seed, draw);
  SimOptions& options = scenario.options;
  DrawManyPartitions(seed, options);
  const Nanoseconds horizon = draw.Seconds(0.05, 10);
  options.limit = absl::Nanoseconds(horizon) + absl::Minutes(2);
  if (draw.Chance(0.5)) {
    scenario.quiet_from = horizon + kSecond;
    options.limit = absl::Nanoseconds(*scenario.quiet_from) + absl::Seconds(60) +
                    absl::Seconds(options.jobs * (5 + options.steps));
    scenario.faults.until = *scenario.quiet_from;
  }
  const auto rate = [&] { return draw.Chance(0.4) ? draw.LogUniform(1e-4, 0.1) : 0; };
  MessageRates& messages = scenario.faults.messages;
  messages.lose_request = rate();
  messages.lose_reply = rate();
  messages.repeat = rate();
  messages.delay = rate();
  scenario.faults.buggify = draw.Chance(0.5) ? 0.25 : 0;
  if (draw.Chance(0.7)) {
    scenario.faults.moments = DrawMoments(options, scenario.quiet_from, horizon, draw);
  }
  DrawScaling(seed, horizon, scenario);
  DrawReplicas(seed, options);
  return scenario;
}

Outcome RunScenario(const Scenario& scenario) {
  return Run(scenario, Faults::Draw(scenario.options.seed, scenario.faults));
}

Outcome RunScenario(const Scenario& scenario, std::vector<Fault> faults) {
  return Run(scenario, Faults::FromList(scenario.options.seed, std::move(faults)));
}

}  // namespace shoal::simulation
