#include "bench/gpu_check/base/parts.h"

#include <algorithm>
#include <optional>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

constexpr Part kParts[] = {
    {"machine", "copies and matrix products: the ceilings that the others are held against",
     RunMachinePart},
    {"ops", "every operator against the CPU's on random input", RunOpsPart},
    {"golden", "training steps of a real model against a float64 reference", RunGoldenPart},
    {"served", "training of a small model through servers against the CPU's losses", RunServedPart},
    {"kernels", "each operator's time against its floor", RunKernelsPart},
    {"train", "tokens/s and utilisation with everything resident", RunTrainPart},
    {"offload", "activations moved to the host: cost, k, and the longest sequence", RunOffloadPart},
    {"service", "a step through servers on this host", RunServicePart},
};

// Keys of values in a part's report.
constexpr char kGoOnFrom[] = "go_on_from";
constexpr char kFailedCases[] = "failed_cases";
constexpr char kRefusedProducts[] = "refused_products";

// Returns the report of an earlier process if this one continues it.
PartReport ReportFor(std::string_view name, const PartOptions& options) {
  if (options.from > 0) {
    if (absl::StatusOr<PartReport> begun = PartReport::GoOn(options.output, std::string(name));
        begun.ok()) {
      begun->SetValue(kGoOnFrom, 0);
      return *std::move(begun);
    }
  }
  return PartReport(options.output, std::string(name));
}

void KeepRefusedProducts(const PartOptions& options, PartReport& report) {
  if (!options.take_refused_products) {
    return;
  }
  auto all = RefusedProductsOf(report).value_or(std::map<std::string, int64_t>());
  for (const auto& [product, count] : options.take_refused_products()) {
    all[product] += count;
  }
  report.SetValue(kRefusedProducts, all);
}

PartState StateOf(const absl::Status& status) {
  if (status.ok()) {
    return PartState::kDone;
  }
  return absl::IsFailedPrecondition(status) ? PartState::kSkipped : PartState::kFailed;
}

}  // namespace

std::string Gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

PartSizes SmallSizes() {
  PartSizes sizes;
  sizes.copy_bytes = 1 << 16;
  sizes.bus_bytes = 1 << 16;
  sizes.matrix = 64;
  sizes.kernel_shape = sizes.small_head_shape = "tiny";
  sizes.kernel_rows = 64;
  sizes.op_checks = worker::CheckScale::kSmall;
  sizes.flat_checks = 9001;
  sizes.train = {{"tiny", 64, 4}, {"tiny", 128, 1, 1, plan::Recompute::kFull}};
  sizes.train_steps = 2;
  sizes.train_warm_seconds = 0;
  sizes.batch_seconds = 0;
  sizes.offload_layers = 2;
  sizes.offload_chunks = 4;
  sizes.offload_tokens = {64};
  sizes.longest_chunks = 4;
  sizes.longest_tokens = 128;
  sizes.longest_step = 64;
  sizes.offload_host_bytes = 1 << 24;
  sizes.service = {"tiny", 64};
  sizes.service_steps = 2;
  return sizes;
}

std::string TrainCase::Name() const {
  std::string name = shape;
  if (layers > 0) {
    name += fmt::format(", {} layers", layers);
  }
  return sequences == 1 ? fmt::format("{}, {} tokens", name, tokens)
                        : fmt::format("{}, {} x {} tokens", name, sequences, tokens / sequences);
}

absl::StatusOr<plan::ModelSpec> TrainCase::Spec() const {
  std::optional<plan::ModelSpec> spec = plan::NamedShape(shape);
  if (!spec) {
    return NotFound("no shape is called {}", shape);
  }
  return layers > 0 ? plan::FirstLayers(*spec, layers) : *spec;
}

PartRun::PartRun(const PartOptions& options, PartReport& report)
    : options_(options), report_(report), begin_(absl::Now()) {}

bool PartRun::HasTimeFor(absl::Duration duration) const {
  return absl::Now() - begin_ + duration <= options_.budget;
}

bool PartRun::IsLostAt(int64_t index) {
  if (!options_.is_lost || !options_.is_lost()) {
    return false;
  }
  report_.SetValue(kGoOnFrom, index + 1);
  return true;
}

void PartRun::Failed(const std::string& what) {
  nlohmann::json all = report_.values().value(kFailedCases, nlohmann::json::array());
  all.push_back(what);
  report_.SetValue(kFailedCases, std::move(all));
}

absl::Status PartRun::Outcome() const {
  const auto all = report_.values().value(kFailedCases, std::vector<std::string>());
  return all.empty() ? absl::OkStatus() : Internal("{}", fmt::join(all, "; "));
}

std::optional<std::map<std::string, int64_t>> RefusedProductsOf(const PartReport& report) {
  const auto found = report.values().find(kRefusedProducts);
  if (found == report.values().end()) {
    return std::nullopt;
  }
  return found->get<std::map<std::string, int64_t>>();
}

int64_t GoesOnFrom(const PartReport& report) {
  return report.values().value(kGoOnFrom, int64_t{0});
}

absl::StatusOr<worker::ComputeDevice> PartRun::MakeTrainingDevice() const {
  return options_.make_any_order_device ? options_.make_any_order_device()
                                        : options_.make_device(0);
}

std::string PartRun::TakeAttentionBackward() const {
  return options_.take_attention_backward ? options_.take_attention_backward() : "";
}

double PartRun::seconds() const { return absl::ToDoubleSeconds(absl::Now() - begin_); }

std::span<const Part> Parts() { return kParts; }

absl::StatusOr<std::vector<Part>> ChosenParts(std::string_view only) {
  std::vector<Part> chosen;
  std::vector<std::string_view> names;
  for (const Part& part : kParts) {
    names.push_back(part.name);
    if (only.empty() || only == part.name) {
      chosen.push_back(part);
    }
  }
  if (chosen.empty()) {
    return InvalidArgument("no part is called {}: there are {}", only, fmt::join(names, ", "));
  }
  return chosen;
}

std::vector<PartReport> RunParts(const std::vector<Part>& parts, const PartOptions& options) {
  std::vector<PartReport> reports;
  for (const Part& part : parts) {
    fmt::print(stderr, "== {}: {}\n", part.name, part.what);
    PartReport& report = reports.emplace_back(ReportFor(part.name, options));
    const double before = report.seconds();
    PartRun run(options, report);
    const absl::Status status = part.run(run);
    KeepRefusedProducts(options, report);
    report.Finish(StateOf(status), std::string(Message(status)), before + run.seconds());
    if (!status.ok()) {
      fmt::print(stderr, "{} {}: {}\n", part.name,
                 report.state() == PartState::kSkipped ? "skipped" : "FAILED", report.why());
    }
  }
  return reports;
}

}  // namespace shoal::bench
