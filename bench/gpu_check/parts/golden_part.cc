// Runs the golden training steps on the device: loss, gradients and parameters of three AdamW steps
// of a real model against a float64 reference, in fp32; loss and gradients of the first in bf16.
#include <cmath>
#include <fstream>

#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/resident_units.h"
#include "bench/gpu_check/report/bars.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"
#include "fmt/format.h"
#include "worker/model/golden_steps.h"
#include "worker/model/runner.h"

namespace shoal::bench {
namespace {

using Json = nlohmann::json;

// Largest errors, relative to the reference.
struct Bounds {
  double loss;
  double norm;        // of all gradients
  double tensor;      // of each tensor's gradient
  double parameters;  // after the step
};
constexpr Bounds kFp32 = {1e-5, 1e-4, 1e-4, 1e-6};
constexpr Bounds kBf16 = {0.01, 0.05, 0.1, 1.0};

double RelativeError(double found, double expected) { return std::abs(found / expected - 1); }

class GoldenRun {
 public:
  static absl::StatusOr<std::unique_ptr<GoldenRun>> Create(PartRun& run, DType compute) {
    std::unique_ptr<GoldenRun> golden(new GoldenRun());
    SHOAL_ASSIGN_OR_RETURN(golden->json_, worker::ReadGoldenSteps(run.options().data));
    SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<formats::HfModel> hf,
                           formats::HfModel::Open(run.options().data + "/stories260k"));
    SHOAL_ASSIGN_OR_RETURN(worker::ComputeDevice compute_device, run.options().make_device(0));
    SHOAL_ASSIGN_OR_RETURN(golden->model_, worker::Transformer::Create(hf->spec(), compute,
                                                                       std::move(compute_device)));
    SHOAL_ASSIGN_OR_RETURN(golden->weights_, ResidentWeights::Create(*golden->model_));
    SHOAL_ASSIGN_OR_RETURN(golden->gradients_, ResidentGradients::Create(*golden->model_));
    for (const plan::UnitSpec& unit : golden->model_->units()) {
      std::vector<float>& master =
          golden->masters_.emplace_back(static_cast<size_t>(unit.count), 0.0F);
      SHOAL_RETURN_IF_ERROR(hf->ReadUnit(unit.index, 0, master));
    }
    golden->read_.resize(golden->masters_.size());
    return golden;
  }

  const Json& steps() const { return json_["steps"]; }

  // Adds one step's row; runs the optimizer, which changes the masters.
  absl::StatusOr<bool> AddStep(PartReport& report, const Json& step, int number,
                               worker::ReferenceAdamW& optimizer, const Bounds& bounds) {
    SHOAL_ASSIGN_OR_RETURN(const double loss, Backward(step["targets"]));
    const auto gradient = [&](int unit) { return Gradient(unit); };
    const auto norms = worker::NormsByTensor(model_->units(), gradient);
    const double norm = worker::NormOf(norms);
    double worst_tensor = 0;
    if (step.contains("grads")) {  // only the first step
      for (const auto& [name, tensor] : norms) {
        worst_tensor = std::max(worst_tensor, RelativeError(tensor.l2, step["grads"][name]["l2"]));
      }
    }
    optimizer.Step([&](int unit) { return std::span(masters_[static_cast<size_t>(unit)]); },
                   gradient, norm);
    const double loss_error = RelativeError(loss, step["loss"]);
    const double norm_error = RelativeError(norm, step["grad_norm"]);
    const double parameters_error = RelativeError(ParameterNorm(), step["param_l2_after"]);
    // NaN fails.
    const bool right = loss_error <= bounds.loss && norm_error <= bounds.norm &&
                       worst_tensor <= bounds.tensor && parameters_error <= bounds.parameters;
    report.AddRow({std::string(Name(model_->compute())), fmt::format("{}", number),
                   fmt::format("{:.6f}", loss), fmt::format("{:.1e}", loss_error),
                   fmt::format("{:.1e}", norm_error),
                   step.contains("grads") ? fmt::format("{:.1e}", worst_tensor) : "-",
                   fmt::format("{:.1e}", parameters_error), right ? "right" : "**wrong**"});
    return right;
  }

  const std::vector<plan::UnitSpec>& units() const { return model_->units(); }
  const Json& adamw() const { return json_["adamw"]; }

 private:
  GoldenRun() = default;

  // Returns the mean loss; leaves the gradients in read_.
  absl::StatusOr<double> Backward(double targets) {
    for (size_t unit = 0; unit < masters_.size(); ++unit) {
      SHOAL_RETURN_IF_ERROR(weights_->Set(static_cast<int>(unit), masters_[unit]));
    }
    gradients_->Clear();
    double loss = 0;
    for (const worker::PackedBatch& batch : worker::GoldenMicrobatches(json_)) {
      SHOAL_ASSIGN_OR_RETURN(const worker::MicrobatchResult result,
                             RunMicrobatch(*model_, batch, 1.0 / targets, *weights_, *gradients_));
      loss += result.loss_sum;
    }
    for (size_t unit = 0; unit < masters_.size(); ++unit) {
      SHOAL_ASSIGN_OR_RETURN(read_[unit], gradients_->Read(static_cast<int>(unit)));
    }
    return loss / targets;
  }
  std::span<const float> Gradient(int unit) const { return read_[static_cast<size_t>(unit)]; }
  double ParameterNorm() const {
    double squares = 0;
    for (const std::vector<float>& unit : masters_) {
      for (const float value : unit) {
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
    }
    return std::sqrt(squares);
  }

  Json json_;
  std::unique_ptr<worker::Transformer> model_;
  std::unique_ptr<ResidentWeights> weights_;
  std::unique_ptr<ResidentGradients> gradients_;
  std::vector<std::vector<float>> masters_;
  std::vector<std::vector<float>> read_;
};

absl::StatusOr<bool> AddType(PartRun& run, DType compute, const Bounds& bounds, size_t steps) {
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<GoldenRun> golden, GoldenRun::Create(run, compute));
  worker::ReferenceAdamW optimizer(golden->adamw(), golden->units());
  bool right = true;
  for (size_t i = 0; i < std::min(steps, golden->steps().size()); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const bool step_right,
                           golden->AddStep(run.report(), golden->steps()[i],
                                           static_cast<int>(i) + 1, optimizer, bounds));
    right = right && step_right;
  }
  return right;
}

}  // namespace

absl::Status RunGoldenPart(PartRun& run) {
  if (run.options().data.empty()) {
    return FailedPrecondition("--data does not name the folder of golden steps");
  }
  run.report().AddTable(
      "Golden training steps",
      fmt::format(
          "stories260k against a float64 reference; AdamW on the host. Bounds in fp32: loss "
          "{:.0e}, norm of all gradients {:.0e}, of each tensor's {:.0e}, of parameters "
          "{:.0e}; in bf16 {}, {}, {}.",
          kFp32.loss, kFp32.norm, kFp32.tensor, kFp32.parameters, kBf16.loss, kBf16.norm,
          kBf16.tensor),
      {"type", "step", "loss", "its error", "norm's", "worst tensor's", "parameters'", ""});
  SHOAL_ASSIGN_OR_RETURN(const bool fp32, AddType(run, DType::kF32, kFp32, 3));
  SHOAL_ASSIGN_OR_RETURN(const bool bf16, AddType(run, DType::kBF16, kBf16, 1));
  run.report().AddBar(GoldenBar().Found(fp32 && bf16 ? "all" : "not all", fp32 && bf16));
  return fp32 && bf16 ? absl::OkStatus()
                      : Internal("training steps differ from the reference's: see the table");
}

}  // namespace shoal::bench
