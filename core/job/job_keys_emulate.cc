#include "core/base/nearest.h"
#include "core/job/job_key_builder.h"
#include "core/model/model_spec.h"

namespace shoal::plan {
namespace {

absl::Status ParseShape(const YAML::Node& node, Job& job) {
  SHOAL_ASSIGN_OR_RETURN(const std::string name, ParseScalar(node, "the name of a shape"));
  if (!name.empty() && !NamedShape(name).has_value()) {
    return InvalidArgument("has the unknown shape '{}'; did you mean {}?", name.substr(0, 60),
                           Nearest(name, NamedShapes()));
  }
  job.emulate.shape = name;
  return absl::OkStatus();
}

absl::Status ParseSpeeds(const YAML::Node& node, Job& job) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<double> speeds, ParseNumberList(node, {1e-3, 1e3}));
  if (speeds.empty()) {
    return InvalidArgument("is an empty list, expected speeds like [1, 1, 0.5]");
  }
  job.emulate.speeds = std::move(speeds);
  return absl::OkStatus();
}

std::string PrintSpeeds(const Job& job) {
  std::string text;
  for (const double speed : job.emulate.speeds) {
    text += (text.empty() ? "" : ", ") + PrintNumber(speed);
  }
  return "[" + text + "]";
}

}  // namespace

void AddEmulateKeys(TableBuilder& table) {
  const auto enabled = [](const Job& job) { return job.emulate.enabled(); };
  table
      .Add({.key = {.path = "emulate.shape",
                    .type = "name of a shape",
                    .help = "Emulated devices: workers compute nothing and take as long as a "
                            "device would with a model of this shape; messages are real."},
            .parse = ParseShape,
            .print =
                [=](const Job& job) {
                  return enabled(job) ? std::optional(QuoteYaml(job.emulate.shape)) : std::nullopt;
                }})
      .Number(
          "emulate.device_flops", [](Job & j) -> auto& { return j.emulate.device_flops; },
          {.low = 1}, "FLOP/s that an emulated device of speed 1 reaches.")
      .Number(
          "emulate.time_scale", [](Job & j) -> auto& { return j.emulate.time_scale; }, {1e-6, 1e6},
          "Real seconds per emulated second.")
      .Add({.key = {.path = "emulate.speeds",
                    .type = "list of numbers",
                    .help = "Relative speeds of the emulated devices, by worker, in turn."},
            .parse = ParseSpeeds,
            .print = PrintSpeeds});
}

}  // namespace shoal::plan
