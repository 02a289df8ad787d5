// Pipeline schedules with activation offload, as a dated report: simulated, and run by threads on
// emulated devices.
#include <filesystem>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/pipeline/measured.h"
#include "bench/pipeline/paper.h"
#include "bench/pipeline/simulated.h"
#include "bench/report/report.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

absl::Status Run(const MeasuredOptions& measured, const std::string& output,
                 const std::string& command) {
  const std::string name =
      absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()) + "-pipeline";
  Report report(name);
  if (measured.steps > 0) {
    SHOAL_RETURN_IF_ERROR(AddMeasured(measured, report));
  }
  SHOAL_RETURN_IF_ERROR(AddParetoFront(report));
  SHOAL_RETURN_IF_ERROR(AddStagesCurve(report));
  AddOffloadRatios(report);
  SHOAL_RETURN_IF_ERROR(AddPaperModels(report));
  const std::string title = "Pipeline stages with activation offload";
  const std::string introduction =
      fmt::format("Made by `{}` on {} cores.", command, std::thread::hardware_concurrency());
  if (output.empty()) {
    fmt::print("{}", report.Markdown(title, introduction));
    return absl::OkStatus();
  }
  fmt::print(stderr, "{}/{}.md: {} bars missed\n", output, name, report.missed());
  return report.Write(output, name, title, introduction);
}

int Main(int argc, char** argv) {
  MeasuredOptions measured;
  std::string output;
  CLI::App app("Pipeline schedules with activation offload, as a report");
  app.add_option("--output", output,
                 "Folder for the report and its pictures; without it the report goes to stdout");
  app.add_option("--unit-seconds", measured.unit_seconds,
                 "Seconds of an emulated stage's forward of one microbatch")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", measured.steps, "Emulated steps that count; 0 leaves them out")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  std::string command = std::filesystem::path(argv[0]).filename().string();
  for (int i = 1; i < argc; ++i) {
    command += fmt::format(" {}", argv[i]);
  }
  const absl::Status status = Run(measured, output, command);
  if (!status.ok()) {
    fmt::print(stderr, "{}\n", Message(status));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) { return shoal::bench::Main(argc, argv); }
