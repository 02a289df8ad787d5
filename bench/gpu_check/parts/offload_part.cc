// Measures activation offload by the pipeline's runtime on one device: its cost against the same
// schedule without, its k as planned and as measured, whether it changes a bit, and the longest
// sequences with and without.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/time/clock.h"
#include "bench/gpu_check/base/batches.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/parts/whole_model.h"
#include "bench/gpu_check/report/bars.h"
#include "core/base/memory/host_memory.h"
#include "core/base/status.h"
#include "fmt/format.h"
#include "worker/probe/probe.h"

namespace shoal::bench {
namespace {

constexpr size_t kSteps = 3;       // measured
constexpr size_t kLeastSteps = 2;  // if steps are long
constexpr absl::Duration kLongSteps = absl::Seconds(6);
// Expected duration of a first case and a first attempt; and a factor for later ones, over what
// earlier ones predict.
constexpr absl::Duration kExpected = absl::Seconds(20);
constexpr double kMargin = 1.3;
// A full vocabulary's head would outweigh the few layers.
constexpr int64_t kMostVocabulary = 8192;
constexpr int kComparedUnit = 1;  // the first block

// Lets everything be offloaded, however long computing then waits.
plan::PipelinePace PaceOfAnyOffload() {
  return {.forward_flops = 1e12,
          .backward_input_flops = 1e12,
          .backward_weights_flops = 1e12,
          .offload_bytes_per_second = 1e15,
          .reload_bytes_per_second = 1e15};
}

// A schedule's counts and results.
struct Ran {
  WholeModel::Step step;  // with the median time
  std::vector<float> gradient;
};

absl::StatusOr<Ran> RunSteps(WholeModel& model, const std::vector<worker::PackedBatch>& batches) {
  std::vector<WholeModel::Step> steps;
  const absl::Time begin = absl::Now();
  SHOAL_RETURN_IF_ERROR(model.Run(batches).status());
  while (steps.size() < kSteps) {
    SHOAL_ASSIGN_OR_RETURN(WholeModel::Step step, model.Run(batches));
    steps.push_back(std::move(step));
    if (steps.size() >= kLeastSteps && absl::Now() - begin > kLongSteps) {
      break;
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  Ran ran;
  ran.step = std::move(steps[steps.size() / 2]);
  SHOAL_ASSIGN_OR_RETURN(ran.gradient, model.Gradient(kComparedUnit));
  return ran;
}

bool SameBits(const Ran& a, const Ran& b) {
  return std::memcmp(&a.step.loss, &b.step.loss, sizeof(double)) == 0 &&
         a.gradient.size() == b.gradient.size() &&
         std::memcmp(a.gradient.data(), b.gradient.data(), a.gradient.size() * sizeof(float)) == 0;
}

class OffloadPart {
 public:
  OffloadPart(PartRun& run, const plan::ModelSpec& spec)
      : run_(run), whole_(spec), layers_(plan::FirstLayers(spec, run.sizes().offload_layers)) {
    layers_.vocabulary = std::min(layers_.vocabulary, kMostVocabulary);
  }

  absl::Status Run() {
    AddTables();
    // First what needs no pinned memory: pinning tens of gigabytes may fail.
    SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<HostPiece> none, HostPiece::Make(run_, 0));
    SHOAL_RETURN_IF_ERROR(AddLongest("without", *none));
    SHOAL_RETURN_IF_ERROR(TakeHostMemory());
    const std::vector<int64_t>& lengths = run_.sizes().offload_tokens;
    if (!lengths.empty()) {
      SHOAL_RETURN_IF_ERROR(AddCost(lengths.front()));
    }
    SHOAL_RETURN_IF_ERROR(AddLongest("with offload", *host_));
    for (size_t i = 1; i < lengths.size(); ++i) {
      SHOAL_RETURN_IF_ERROR(AddCost(lengths[i]));
    }
    return AddBars();
  }

 private:
  void AddTables() {
    PartReport& report = run_.report();
    pinned_table_ =
        report.AddTable("Pinned memory of the host", "", {"asked for", "had", "seconds"});
    cost_table_ = report.AddTable(
        "Activation offload",
        fmt::format("Shape {} with {} layers and a vocabulary of {}, two microbatches of one "
                    "sequence each, light recompute, as many of {} chunks offloaded as the pinned "
                    "memory takes, beside the same schedule without. The last block and the head "
                    "of the last microbatch stay: their backward follows at once. k: seconds of "
                    "copies out and back, were all copied, over seconds of compute; planned from "
                    "what the probe measures.",
                    run_.sizes().kernel_shape, layers_.layers, layers_.vocabulary,
                    run_.sizes().offload_chunks),
        {"tokens", "k, planned", "k, measured", "without, ms", "with, ms", "longer by", "moved",
         "device's peak without", "with", "planned", "host's peak", "planned", "same bits"});
    longest_table_ = report.AddTable(
        "The longest sequence",
        fmt::format("Shape {} whole, one microbatch of one sequence, light recompute, weights in "
                    "bf16 and gradients in fp32 resident, no optimizer state; in steps of {} "
                    "tokens up to {}.",
                    run_.sizes().kernel_shape, run_.sizes().longest_step,
                    run_.sizes().longest_tokens),
        {"", "tokens", "seconds", "activations on the device", "on the host", "moved"});
  }

  absl::Status TakeHostMemory() {
    // Leaves memory for everything else, since pinned memory is taken from it.
    SHOAL_ASSIGN_OR_RETURN(const HostMemory machine, ReadHostMemory());
    const int64_t most = std::min(machine.total / 2, machine.available / 4 * 3);
    const absl::Time begin = absl::Now();
    SHOAL_ASSIGN_OR_RETURN(host_,
                           HostPiece::Make(run_, std::min(run_.sizes().offload_host_bytes, most)));
    run_.report().AddRowTo(pinned_table_,
                           {Gib(run_.sizes().offload_host_bytes), Gib(host_->budget_bytes()),
                            fmt::format("{:.1f}", absl::ToDoubleSeconds(absl::Now() - begin))});
    return absl::OkStatus();
  }

  absl::Status AddCost(int64_t tokens);
  absl::Status AddLongest(const std::string& name, worker::Memory& host);
  absl::StatusOr<WholeModel::Step> TryLength(int64_t tokens, worker::Memory& host,
                                             std::string& moved);
  absl::Status AddBars();

  PartRun& run_;
  const plan::ModelSpec whole_;
  plan::ModelSpec layers_;
  std::unique_ptr<HostPiece> host_;
  size_t pinned_table_ = 0, cost_table_ = 0, longest_table_ = 0;
  absl::Duration of_token_ = absl::ZeroDuration();
  struct Cost {
    int64_t tokens = 0;
    double ratio = 0;
    double longer = 0;
    std::string moved;
    bool same_bits = false;
  };
  std::vector<Cost> measured_;
};

absl::Status OffloadPart::AddCost(int64_t tokens) {
  std::vector<std::string> row(13, "-");
  row[0] = fmt::format("{}", tokens);
  if (!run_.HasTimeFor(std::max(kExpected, of_token_ * tokens * kMargin))) {
    row[1] = "no time was left";
    run_.report().AddRowTo(cost_table_, row);
    run_.report().AddBar(OffloadRatioBar(tokens).NotMeasured("no time was left"));
    return absl::OkStatus();
  }
  const absl::Time begin = absl::Now();
  SHOAL_ASSIGN_OR_RETURN(worker::ComputeDevice compute_device, run_.options().make_device(0));
  SHOAL_ASSIGN_OR_RETURN(const worker::ProbeResult probe,
                         worker::Probe(layers_, {.compute = DType::kBF16, .tokens = tokens},
                                       std::move(compute_device)));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<WholeModel> model,
                         WholeModel::Make(run_, layers_, run_.sizes().offload_chunks, *host_));
  const std::vector<worker::PackedBatch> batches = {
      OneSequence(layers_, tokens, run_.options().seed),
      OneSequence(layers_, tokens, run_.options().seed + 1)};
  SHOAL_RETURN_IF_ERROR(model->MakeSchedule(batches, 0, probe.pace));
  SHOAL_ASSIGN_OR_RETURN(const Ran without, RunSteps(*model, batches));
  SHOAL_RETURN_IF_ERROR(model->MakeSchedule(batches, host_->budget_bytes(), probe.pace));
  SHOAL_ASSIGN_OR_RETURN(const Ran with, RunSteps(*model, batches));
  SHOAL_ASSIGN_OR_RETURN(const WholeModel::Planned planned, model->PlannedOf(batches, probe.pace));
  of_token_ = (absl::Now() - begin) / tokens;

  const double compute = without.step.report.compute_seconds;
  const Cost cost{.tokens = tokens,
                  .ratio = model->CopySeconds(with.step.report) / compute,
                  .longer = with.step.seconds / without.step.seconds - 1,
                  .moved = model->Moved(with.step.report),
                  .same_bits = SameBits(with, without)};
  row = {row[0],
         fmt::format("{:.3f}", planned.ratio),
         fmt::format("{:.3f}", cost.ratio),
         fmt::format("{:.1f}", 1e3 * without.step.seconds),
         fmt::format("{:.1f}", 1e3 * with.step.seconds),
         fmt::format("{:+.1f}%", 100 * cost.longer),
         cost.moved,
         Gib(without.step.report.peak_device_bytes),
         Gib(with.step.report.peak_device_bytes),
         Gib(planned.device_bytes),
         Gib(with.step.report.peak_host_bytes),
         Gib(planned.host_bytes),
         cost.same_bits ? "yes" : "**no**"};
  run_.report().AddRowTo(cost_table_, row);
  measured_.push_back(cost);
  if (cost.ratio > 0) {
    const double off = planned.ratio / cost.ratio - 1;
    run_.report().AddBar(OffloadRatioBar(tokens).Found(
        fmt::format("{:.3f}, {:.3f}: {:+.1f}%", planned.ratio, cost.ratio, 100 * off),
        std::abs(off) <= kRatioPrediction));
  } else {
    run_.report().AddBar(OffloadRatioBar(tokens).NotMeasured("nothing was offloaded"));
  }
  return absl::OkStatus();
}

// Runs one step of a model made for it, so that a failed attempt takes no memory from the next one.
absl::StatusOr<WholeModel::Step> OffloadPart::TryLength(int64_t tokens, worker::Memory& host,
                                                        std::string& moved) {
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<WholeModel> model,
                         WholeModel::Make(run_, whole_, run_.sizes().longest_chunks, host));
  const std::vector<worker::PackedBatch> batches = {
      OneSequence(whole_, tokens, run_.options().seed)};
  SHOAL_RETURN_IF_ERROR(model->MakeSchedule(batches, host.budget_bytes(), PaceOfAnyOffload()));
  SHOAL_ASSIGN_OR_RETURN(WholeModel::Step step, model->Run(batches));
  moved = model->Moved(step.report);
  return step;
}

// Finds the longest sequence for which a step fits, by bisection.
absl::Status OffloadPart::AddLongest(const std::string& name, worker::Memory& host) {
  const int64_t step = run_.sizes().longest_step;
  std::vector<std::string> row = {name, "none", "-", "-", "-", "-"};
  int64_t fits = 0, too_long = run_.sizes().longest_tokens / step + 1;
  absl::Duration expected = kExpected;
  while (too_long - fits > 1) {
    const int64_t tried = (fits + too_long) / 2;
    // Attention takes time by the square.
    const double longer = fits > 0 ? static_cast<double>(tried) / static_cast<double>(fits) : 1;
    if (!run_.HasTimeFor(expected * kMargin * longer * longer)) {
      row.front() += ", as far as there was time";
      break;
    }
    const absl::Time begin = absl::Now();
    std::string moved;
    const absl::StatusOr<WholeModel::Step> ran = TryLength(tried * step, host, moved);
    fmt::print(stderr, "offload: {}: {} tokens {}\n", name, tried * step,
               ran.ok() ? "fit" : Message(ran.status()));
    if (ran.ok()) {
      fits = tried;
      expected = absl::Now() - begin;
      row = {row.front(),
             fmt::format("{}", tried * step),
             fmt::format("{:.2f}", ran->seconds),
             Gib(ran->report.peak_device_bytes),
             Gib(ran->report.peak_host_bytes),
             moved};
    } else if (absl::IsResourceExhausted(ran.status())) {
      too_long = tried;
    } else {
      return ran.status();
    }
  }
  run_.report().AddRowTo(longest_table_, row);
  return absl::OkStatus();
}

absl::Status OffloadPart::AddBars() {
  if (measured_.empty()) {
    return absl::OkStatus();
  }
  std::vector<std::string> costs, ratios;
  bool cheap = true, same = true;
  for (const Cost& cost : measured_) {
    ratios.push_back(fmt::format("{:.2f} at {} tokens", cost.ratio, cost.tokens));
    same = same && cost.same_bits;
    if (cost.ratio > 0 && cost.ratio <= kMostK) {
      costs.push_back(fmt::format("{:+.1f}% at {} tokens, k {:.2f}, {}", 100 * cost.longer,
                                  cost.tokens, cost.ratio, cost.moved));
      cheap = cheap && cost.longer <= kMostOffloadCost;
    }
  }
  run_.report().AddBar(
      costs.empty() ? OffloadCostBar().NotMeasured(fmt::format("k was {}", fmt::join(ratios, ", ")))
                    : OffloadCostBar().Found(fmt::format("{}", fmt::join(costs, "; ")), cheap));
  run_.report().AddBar(OffloadBitsBar().Found(same ? "yes" : "no", same));
  return same ? absl::OkStatus() : Internal("offload changes losses or gradients: see the table");
}

}  // namespace

absl::Status RunOffloadPart(PartRun& run) {
  const std::optional<plan::ModelSpec> spec = plan::NamedShape(run.sizes().kernel_shape);
  if (!spec) {
    return InvalidArgument("no shape is called {}", run.sizes().kernel_shape);
  }
  return OffloadPart(run, *spec).Run();
}

}  // namespace shoal::bench
