// Forward and backward of a microbatch with weights and gradients resident: what a worker computes
// when nothing makes it wait.
#include <algorithm>

#include "bench/gpu/parts.h"
#include "bench/gpu/resident_training.h"
#include "bench/gpu/utilisation.h"
#include "common/status.h"
#include "fmt/format.h"
#include "plan/loss_chunk.h"
#include "worker/model/runner.h"

namespace shoal::bench {
namespace {

// Of a case besides its steps, of which it makes this many at least.
constexpr absl::Duration kOfCase = absl::Seconds(5);
constexpr double kLeastSteps = 3;

// Weights, gradients and a microbatch's memory.
int64_t NeededBytes(const plan::ModelSpec& spec, int64_t tokens) {
  int64_t elements = 0;
  for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
    elements += unit.count;
  }
  return elements * (SizeOf(DType::kBF16) + SizeOf(DType::kF32)) +
         worker::MicrobatchBytes(spec, DType::kBF16, tokens, plan::kGpuLossChunk);
}

std::string Gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// What is asked for on an H200.
void AddBars(PartReport& report, const TrainCase& c, double tokens_per_second, double utilisation) {
  struct Floor {
    const char* shape;
    int64_t tokens;
    double tokens_per_second;
  };
  constexpr Floor kFloors[] = {{"124m", 4096, 460e3}, {"1.3b", 4096, 40e3}, {"1.3b", 32768, 12e3}};
  const std::string what = fmt::format("{} at {} tokens", c.shape, c.tokens);
  for (const Floor& floor : kFloors) {
    if (c.shape == floor.shape && c.tokens == floor.tokens) {
      report.AddBar({what, fmt::format("at least {:.0f} tokens/s", floor.tokens_per_second),
                     fmt::format("{:.0f}", tokens_per_second),
                     tokens_per_second >= floor.tokens_per_second});
    }
  }
  if (c.shape == "7b" && c.tokens == 4096) {
    report.AddBar({what, "utilisation at least 0.50", fmt::format("{:.2f}", utilisation),
                   utilisation >= 0.5});
  }
}

}  // namespace

absl::Status RunTrainPart(PartRun& run) {
  PartReport& report = run.report();
  report.AddTable("Training with everything resident",
                  "One sequence that fills the microbatch, random weights in bf16, gradients added "
                  "up in fp32, forward and backward without the optimizer; nothing is computed "
                  "again. Medians. " +
                      UtilisationFormula(),
                  {"shape", "parameters", "tokens", "steps", "ms", "tokens/s", "utilisation",
                   "memory, peak", "note"});
  nlohmann::json cases = nlohmann::json::array();
  std::vector<std::string> failed;
  double slowest = 0;  // seconds of a FLOP, of the cases so far
  for (const TrainCase& c : run.sizes().train) {
    const std::optional<plan::ModelSpec> spec = plan::NamedShape(c.shape);
    if (!spec) {
      return InvalidArgument("no shape is called {}", c.shape);
    }
    std::vector<std::string> row = {
        c.shape,
        fmt::format("{:.3g}", static_cast<double>(plan::ParameterCount(*spec))),
        fmt::format("{}", c.tokens),
        "-",
        "-",
        "-",
        "-",
        Gib(NeededBytes(*spec, c.tokens)),
        ""};
    const double flops = TrainingFlops(*spec, c.tokens);
    if (!run.HasTimeFor(kOfCase + absl::Seconds(kLeastSteps * slowest * flops))) {
      row.back() = "no time was left";
      report.AddRow(row);
      continue;
    }
    const absl::StatusOr<ResidentTraining> trained = TrainResident(run, *spec, c.tokens);
    if (!trained.ok()) {
      const bool too_large = absl::IsResourceExhausted(trained.status());
      row.back() = too_large ? "does not fit" : std::string(Message(trained.status()));
      report.AddRow(row);
      if (!too_large) {
        failed.push_back(fmt::format("{} at {} tokens: {}", c.shape, c.tokens, row.back()));
      }
      continue;
    }
    slowest = std::max(slowest, trained->seconds / flops);
    const double rate = static_cast<double>(c.tokens) / trained->seconds;
    const double utilisation = Utilisation(*spec, c.tokens, trained->seconds);
    row[3] = fmt::format("{}", trained->steps);
    row[4] = fmt::format("{:.2f}", 1e3 * trained->seconds);
    row[5] = fmt::format("{:.0f}", rate);
    row[6] = fmt::format("{:.3f}", utilisation);
    row[7] = Gib(trained->peak_bytes);
    report.AddRow(row);
    AddBars(report, c, rate, utilisation);
    cases.push_back({{"shape", c.shape},
                     {"tokens", c.tokens},
                     {"seconds", trained->seconds},
                     {"tokens_per_second", rate},
                     {"utilisation", utilisation},
                     {"peak_bytes", trained->peak_bytes},
                     {"loss", trained->loss}});
    report.SetValue("cases", cases);
  }
  return failed.empty() ? absl::OkStatus() : Internal("{}", fmt::join(failed, "; "));
}

}  // namespace shoal::bench
