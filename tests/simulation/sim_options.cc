#include "tests/simulation/sim_options.h"

#include <array>

#include "fmt/format.h"

namespace shoal::simulation {
namespace {

std::string NameOf(plan::OnServerLoss loss) {
  static constexpr std::array kNames = {"Auto", "Restore", "Fail"};
  return fmt::format("plan::OnServerLoss::k{}", kNames[static_cast<size_t>(loss)]);
}

}  // namespace

std::string ToCode(const SimOptions& options) {
  const SimOptions plain;
  std::string code;
  const auto say = [&](const char* name, const auto& value, const auto& otherwise) {
    if (value != otherwise) {
      code += fmt::format("{}.{} = {}", code.empty() ? "" : ", ", name, value);
    }
  };
  // In the order of their declaration, as designators must be.
#define SAY(field) say(#field, options.field, plain.field)
  SAY(seed);
  SAY(servers);
  SAY(spare_servers);
  SAY(workers);
  SAY(spares);
  SAY(stages);
  SAY(addresses);
  SAY(hosts_and_loopback);
  SAY(steps);
  SAY(stop_after);
  SAY(samples);
  SAY(checkpoint_every);
  SAY(checkpoint_seconds);
  SAY(validate_every);
  SAY(pairs);
  SAY(patience);
  SAY(keep_best);
  SAY(skip_nonfinite);
  SAY(resume);
  SAY(draw);
  SAY(layer);
  SAY(sums);
  say("on_server_loss", NameOf(options.on_server_loss), NameOf(plain.on_server_loss));
  SAY(trace);
  SAY(lost_reply);
  SAY(repeated_report);
  SAY(failed_report);
  SAY(slow_worker);
  SAY(early_report);
  SAY(exact);
  SAY(replicas);
  SAY(read_replicas);
  SAY(exact_devices);
  SAY(other_kind);
  SAY(lease_seconds);
  SAY(start_timeout_seconds);
  SAY(recovery_timeout_seconds);
  SAY(min_workers);
  SAY(min_servers);
  SAY(elastic);
  SAY(model_growth);
  SAY(wave_bytes);
  SAY(move_rate);
  SAY(max_restarts);
  SAY(stays);
  SAY(jobs);
#undef SAY
  if (options.limit != plain.limit) {
    code += fmt::format("{}.limit = absl::Nanoseconds({})", code.empty() ? "" : ", ",
                        absl::ToInt64Nanoseconds(options.limit));
  }
  return "{" + code + "}";
}

}  // namespace shoal::simulation
