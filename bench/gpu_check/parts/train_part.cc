// Measures training steps with weights, gradients and optimizer state resident: what a worker and
// its servers compute if nothing makes them wait.
#include <algorithm>

#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/resident_optimizer.h"
#include "bench/gpu_check/base/utilisation.h"
#include "bench/gpu_check/parts/profiled_ops.h"
#include "bench/gpu_check/parts/resident_training.h"
#include "bench/gpu_check/report/bars.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

// Expected for a case besides its steps, tuning included.
constexpr double kSecondsOfCase = 4;
// Expected seconds of the first whole step; and a factor for later ones, over what earlier ones
// predict.
constexpr double kFirstStep = 0.5;
constexpr double kMargin = 1.5;

std::string Ms(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }

std::string NoteOf(const TrainCase& c, const ResidentTraining& trained) {
  std::vector<std::string> notes;
  if (trained.plan.recompute > c.recompute) {
    notes.push_back(fmt::format("does not fit with recompute {}", plan::Name(c.recompute)));
  }
  if (trained.plan.shared_state) {
    notes.emplace_back("units of one size share AdamW's state: all of it does not fit");
  }
  if (!trained.attention_backward.empty()) {
    notes.push_back("attention backward by " + trained.attention_backward);
  }
  if (trained.step_seconds == 0) {
    notes.emplace_back("without the optimizer");
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

void AddBars(PartReport& report, const TrainCase& c, double tokens_per_second, double utilisation) {
  for (const TrainFloor& floor : kTrainFloors) {
    if (c.Name() != floor.name) {
      continue;
    }
    const bool by_rate = floor.tokens_per_second > 0;
    report.AddBar(BarOf(floor).Found(
        by_rate ? fmt::format("{:.0f}", tokens_per_second) : fmt::format("{:.3f}", utilisation),
        by_rate ? tokens_per_second >= floor.tokens_per_second : utilisation >= floor.utilisation));
  }
}

void AddOperators(PartReport& report, size_t table, const TrainCase& c,
                  const ResidentTraining& trained) {
  for (const OpProfile& of : trained.operators) {
    const double seconds = std::max(of.seconds, 1e-9);
    report.AddRowTo(table, {c.Name(), of.name, fmt::format("{}", of.calls), Ms(of.seconds),
                            fmt::format("{:.2f}", of.cost.bytes / 1e9),
                            fmt::format("{:.2f}", of.cost.bytes / seconds / 1e12),
                            fmt::format("{:.0f}", of.cost.flops / seconds / 1e12)});
  }
}

nlohmann::json OperatorsJson(const ResidentTraining& trained) {
  nlohmann::json operators = nlohmann::json::array();
  for (const OpProfile& of : trained.operators) {
    operators.push_back({{"operator", of.name},
                         {"calls", of.calls},
                         {"seconds", of.seconds},
                         {"bytes", of.cost.bytes},
                         {"flops", of.cost.flops}});
  }
  return operators;
}

// The most seconds that a case may take.
double Expected(const PartSizes& sizes, double step) {
  const double steps = std::min(sizes.train_steps * step, sizes.train_case_seconds);
  return kSecondsOfCase + std::max(sizes.train_warm_seconds, step) + std::max(2 * step, steps);
}

}  // namespace

absl::Status RunTrainPart(PartRun& run) {
  PartReport& report = run.report();
  const size_t steps = report.AddTable(
      "Training with everything resident",
      fmt::format(
          "Random weights in bf16, gradients added up in fp32, AdamW with fp32 master weights and "
          "moments ({} bytes a parameter) in the same memory. A step is one microbatch forward "
          "and backward, AdamW over all parameters and the clearing of gradients; tokens/s, "
          "utilisation and bars are of whole steps. Medians of steps after at least {} s that "
          "do not count, in which the fastest algorithm for each matrix product is looked for. {}",
          kOptimizerBytes, run.sizes().train_warm_seconds, UtilisationFormula()),
      {"case", "parameters", "recompute", "steps", "forward and backward, ms", "AdamW, ms",
       "step, ms", "tokens/s", "utilisation", "the same without AdamW", "memory, peak", "note"});
  const size_t operators = report.AddTable(
      "Where the time of a step goes",
      "Each operator's calls within one more microbatch, from event to event on the stream: with "
      "what is put on it in between, and waiting for the host. Bytes and operations are the least "
      "that it takes, each input read and each output written once.",
      {"case", "operator", "calls", "ms", "GB", "TB/s", "TFLOP/s"});
  nlohmann::json cases = report.values().value("cases", nlohmann::json::array());
  double slowest = 0;  // seconds per FLOP, of the cases so far
  const std::vector<TrainCase>& all = run.sizes().train;
  for (size_t i = static_cast<size_t>(run.options().from); i < all.size(); ++i) {
    const TrainCase& c = all[i];
    SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, c.Spec());
    std::vector<std::string> row(12, "-");
    row[0] = c.Name();
    row[1] = fmt::format("{:.3g}", static_cast<double>(plan::ParameterCount(spec)));
    const double flops = TrainingFlops(spec, c.tokens, c.sequences);
    const double step = slowest > 0 ? kMargin * slowest * flops : kFirstStep;
    const auto leave_out = [&](const std::string& why) {
      row.back() = why;
      report.AddRowTo(steps, row);
      cases.push_back({{"case", c.Name()}, {"left_out", why}});
      report.SetValue("cases", cases);
    };
    if (!run.HasTimeFor(absl::Seconds(Expected(run.sizes(), step)))) {
      leave_out("no time was left");
      continue;
    }
    const absl::StatusOr<ResidentTraining> trained =
        TrainResident(run, c, static_cast<int64_t>(i) < run.sizes().train_profiles);
    if (!trained.ok()) {
      leave_out(std::string(Message(trained.status())));
      if (!absl::IsResourceExhausted(trained.status())) {
        run.Failed(fmt::format("{}: {}", c.Name(), row.back()));
      }
      if (run.IsLostAt(static_cast<int64_t>(i))) {
        break;
      }
      continue;
    }
    const bool whole = trained->step_seconds > 0;
    const double seconds = whole ? trained->step_seconds : trained->microbatch_seconds;
    slowest = std::max(slowest, seconds / flops);
    const auto tokens = static_cast<double>(c.tokens);
    const double utilisation = Utilisation(flops, seconds);
    row[2] = plan::Name(trained->plan.recompute);
    row[3] = fmt::format("{}", trained->steps);
    row[4] = Ms(trained->microbatch_seconds);
    row[5] = whole ? Ms(trained->optimizer_seconds) : "-";
    row[6] = whole ? Ms(trained->step_seconds) : "-";
    row[7] = fmt::format("{:.0f}", tokens / seconds);
    row[8] = fmt::format("{:.3f}", utilisation);
    row[9] = fmt::format("{:.0f}, {:.3f}", tokens / trained->microbatch_seconds,
                         Utilisation(flops, trained->microbatch_seconds));
    row[10] = Gib(trained->peak_bytes);
    row[11] = NoteOf(c, *trained);
    report.AddRowTo(steps, row);
    AddOperators(report, operators, c, *trained);
    if (whole) {
      AddBars(report, c, tokens / seconds, utilisation);
    }
    cases.push_back({{"case", c.Name()},
                     {"shape", c.shape},
                     {"tokens", c.tokens},
                     {"recompute", plan::Name(trained->plan.recompute)},
                     {"microbatch_seconds", trained->microbatch_seconds},
                     {"step_seconds", trained->step_seconds},
                     {"tokens_per_second", whole ? tokens / seconds : 0.0},
                     {"tokens_per_second_without_optimizer", tokens / trained->microbatch_seconds},
                     {"utilisation", utilisation},
                     {"peak_bytes", trained->peak_bytes},
                     {"attention_backward", trained->attention_backward},
                     {"operators", OperatorsJson(*trained)},
                     {"loss", trained->loss}});
    report.SetValue("cases", cases);
  }
  return run.Outcome();
}

}  // namespace shoal::bench
