// Checks what GPU workers compute and how fast, on this machine's GPU:
//
//   gpu_check --data FOLDER --output bench/results            all parts, and the report
//   gpu_check --only train --budget-seconds 100 --parts P     one part, kept in P
//   gpu_check --report-of P --output bench/results            the report of what is in P
//   gpu_check --shapes shapes.json                            the cases, for torch_baseline.py
//
// scripts/gpu-check.sh runs the second for each part, then the third, so that a crash loses one
// part only. Exit codes: 0, 1 if a part failed, 3 without a GPU.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/gpu_check/base/gpu_flat_kernels.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/gpu_device.h"
#include "bench/gpu_check/report/gpu_report.h"
#include "bench/gpu_check/shapes_json.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/gpu/first_calls.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

constexpr int kFailed = 1;
constexpr int kNoGpu = 3;

struct Options {
  std::string only;
  std::string parts;
  std::string report_of;
  std::string output;
  std::string data;
  std::string shapes;
  std::vector<std::string> notes;
  double budget_seconds = 0;
  int64_t from = 0;
  uint64_t seed = 0;
  bool small = false;
};

std::string PartNames() {
  std::vector<std::string_view> names;
  for (const Part& part : Parts()) {
    names.push_back(part.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

int Fail(const absl::Status& status) {
  fmt::print(stderr, "gpu_check: {}\n", Message(status));
  return kFailed;
}

PartSizes SizesOf(const Options& options) { return options.small ? SmallSizes() : PartSizes(); }

int WriteReport(const Options& options) {
  const absl::StatusOr<std::vector<Part>> parts = ChosenParts(options.only);
  if (!parts.ok()) {
    return Fail(parts.status());
  }
  const GpuResults results = LoadResults(options.report_of, SizesOf(options), *parts);
  fmt::print("{}", ShortTable(results));
  const absl::StatusOr<WrittenReport> written =
      WriteGpuReport(results, options.output, options.notes);
  if (!written.ok()) {
    return Fail(written.status());
  }
  fmt::print("{}: {} parts failed, {} bars missed, {} not measured\n", written->path,
             written->failed_parts, written->missed_bars, written->bars_not_measured);
  return written->failed_parts == 0 ? 0 : kFailed;
}

// Replaces the process, whose GPU is lost, by a new one that continues. Returns if it cannot.
void GoOnAnew(const Options& options, const PartReport& report, double seconds_gone) {
  std::vector<std::string> arguments = {"gpu_check",
                                        "--only",
                                        report.name(),
                                        "--parts",
                                        options.parts,
                                        "--seed",
                                        fmt::format("{}", options.seed),
                                        "--from",
                                        fmt::format("{}", GoesOnFrom(report))};
  if (!options.data.empty()) {
    arguments.insert(arguments.end(), {"--data", options.data});
  }
  if (options.budget_seconds > 0) {
    const double left = std::max(1.0, options.budget_seconds - seconds_gone);
    arguments.insert(arguments.end(), {"--budget-seconds", fmt::format("{:.1f}", left)});
  }
  if (options.small) {
    arguments.emplace_back("--small");
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  fmt::print(stderr, "{}: the GPU is lost to this process: a new one goes on\n", report.name());
  ::execv("/proc/self/exe", pointers.data());
}

int RunChosen(const Options& options) {
  const absl::StatusOr<std::vector<Part>> parts = ChosenParts(options.only);
  if (!parts.ok()) {
    return Fail(parts.status());
  }
  PartOptions part_options;
  auto about = DescribeGpu();
  if (!about.ok()) {
    fmt::print(stderr, "gpu_check: no GPU: {}\n", Message(about.status()));
    return kNoGpu;
  }
  part_options.machine = *std::move(about);
  part_options.machine.emplace_back("seed of random data", fmt::format("{}", options.seed));
  if (parts->front().name == "machine") {
    for (const gpu::FirstCall& call : gpu::TryFirstCalls()) {
      part_options.machine.emplace_back(call.what,
                                        fmt::format("{} ({})", call.found, call.meaning));
    }
  }
  part_options.make_device = MakeGpuComputeDevice;
  part_options.make_any_order_device = MakeAnyOrderComputeDevice;
  part_options.is_lost = GpuIsLost;
  part_options.make_own_kernels_device = MakeOwnKernelsComputeDevice;
  part_options.take_refused_products = TakeRefusedProducts;
  part_options.take_attention_backward = TakeAttentionBackward;
  part_options.from = options.from;
  part_options.flat = &GpuFlatKernels();
  part_options.sizes = SizesOf(options);
  part_options.data = options.data;
  part_options.output = options.parts;
  part_options.seed = options.seed;
  part_options.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  if (options.budget_seconds > 0) {
    part_options.budget = absl::Seconds(options.budget_seconds);
  }
  bool failed = false;
  const absl::Time begin = absl::Now();
  for (const PartReport& report : RunParts(*parts, part_options)) {
    if (parts->size() == 1 && GoesOnFrom(report) > 0 && report.saved().ok() &&
        !options.parts.empty() && options.output.empty()) {
      GoOnAnew(options, report, absl::ToDoubleSeconds(absl::Now() - begin));
    }
    failed = failed || report.state() == PartState::kFailed || !report.saved().ok();
  }
  return failed ? kFailed : 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What GPU workers compute and how fast, as a dated report");
  app.add_option("--only", options.only, "One part: " + PartNames());
  app.add_option("--parts", options.parts, "Folder where parts keep what they find");
  app.add_option("--report-of", options.report_of, "Write the report of that folder's parts");
  app.add_option("--output", options.output, "Folder for the report");
  app.add_option("--data", options.data, "Folder of test data (golden, stories260k)");
  app.add_option("--shapes", options.shapes, "Write the cases of training to this JSON file");
  app.add_option("--note", options.notes, "A paragraph of the report's introduction; repeatable");
  app.add_option("--budget-seconds", options.budget_seconds,
                 "Of each part: what it does not come to is left out");
  app.add_option(
      "--from", options.from,
      "Go on with train, kernels or ops at this case, with what --parts has of those before");
  app.add_option("--seed", options.seed, "Of random data; 0: a new one in each run");
  app.add_flag("--small", options.small, "Sizes that try the program, not the GPU");
  CLI11_PARSE(app, argc, argv);
  if (options.seed == 0) {
    options.seed = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  }
  if (!options.shapes.empty()) {
    const absl::Status written =
        WriteFileAtomically(options.shapes, ShapesJson(SizesOf(options)).dump(1) + "\n");
    return written.ok() ? 0 : Fail(written);
  }
  if (!options.report_of.empty()) {
    return WriteReport(options);
  }
  if (options.output.empty()) {
    return RunChosen(options);
  }
  if (options.parts.empty()) {
    options.parts = options.output + "/gpu-parts";
  }
  const int ran = RunChosen(options);
  if (ran == kNoGpu) {
    return ran;
  }
  options.report_of = options.parts;
  return std::max(WriteReport(options), ran);
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) { return shoal::bench::Main(argc, argv); }
