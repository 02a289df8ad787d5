#include "core/job/job.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <numbers>

#include "absl/time/civil_time.h"
#include "core/base/status.h"
#include "core/job/job_schema.h"
#include "fmt/format.h"

namespace shoal::plan {
namespace {

void PrintSection(const Section& section, int depth, std::string& text) {
  const auto& reflection = *section.GetReflection();
  for (int i = 0; i < section.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *section.GetDescriptor()->field(i);
    if (!field.is_repeated() && !reflection.HasField(section, &field)) {
      continue;
    }
    text += fmt::format("{:{}}{}:", "", 2 * depth, field.name());
    if (IsSection(field)) {
      text += "\n";
      PrintSection(reflection.GetMessage(section, &field), depth + 1, text);
    } else {
      text += fmt::format(" {}\n", PrintValue(section, field));
    }
  }
}

}  // namespace

std::optional<Template> TemplateNamed(std::string_view name) {
  const auto found = std::ranges::find(kTemplateNames, name);
  return found == kTemplateNames.end()
             ? std::nullopt
             : std::optional(static_cast<Template>(found - kTemplateNames.begin()));
}

absl::Status CheckTemplate(std::string_view name) {
  return TemplateNamed(name).has_value() || name.ends_with(".jinja")
             ? absl::OkStatus()
             : InvalidArgument(
                   "is '{}', expected auto, plain, chatml, llama3 or the path of a file.jinja",
                   name.substr(0, 60));
}

bool IsDay(const std::string& text) {
  absl::CivilDay day;
  return absl::ParseCivilTime(text, &day) && absl::FormatCivilTime(day) == text;
}

std::vector<std::string> DataOptions::paths() const {
  if (mixture.empty()) {
    return {train};
  }
  std::vector<std::string> paths;
  std::ranges::transform(mixture, std::back_inserter(paths), &DataSource::path);
  return paths;
}

std::vector<double> DataOptions::weights() const {
  std::vector<double> weights;
  for (const DataSource& source : mixture) {
    if (source.weight.has_value()) {
      weights.push_back(*source.weight);
    }
  }
  return weights;
}

void Resolve(Job& job, const std::string& base_directory, const MachineOffer& machine) {
  std::vector<std::string*> paths = {&job.model, &job.data.train, &job.data.validation.path,
                                     &job.lora.from, &job.checkpoint.directory};
  for (DataSource& source : job.data.mixture) {
    paths.push_back(&source.path);
  }
  if (!TemplateNamed(job.data.chat_template).has_value()) {
    paths.push_back(&job.data.chat_template);
  }
  for (std::string* path : paths) {
    if (!path->empty()) {  // An absolute path replaces the base.
      *path = (std::filesystem::path(base_directory) / *path).lexically_normal().string();
    }
  }
  DeviceKind device = job.train.device;
  if (device == DeviceKind::kAuto) {
    device = machine.gpus > 0 && !job.emulate.enabled() ? DeviceKind::kCuda : DeviceKind::kCpu;
  }
  if (job.cluster.local || job.emulate.enabled()) {
    job.train.device = device;
  }
  if (job.train.compute == ComputeType::kAuto) {
    const bool bf16 = device == DeviceKind::kCuda || machine.cpu_has_bf16;
    job.train.compute = bf16 ? ComputeType::kBf16 : ComputeType::kFp32;
  }
  if (job.service.wire_type_auto) {
    job.service.wire_type = job.train.compute == ComputeType::kBf16 ? DType::kBF16 : DType::kF32;
    job.service.wire_type_auto = false;
  }
}

DType ComputeDType(const Job& job) {
  return job.train.compute == ComputeType::kBf16 ? DType::kBF16 : DType::kF32;
}

std::vector<JobDifference> Differences(const Job& first, const Job& second) {
  const auto values = [](const Job& job) {
    std::map<std::string, std::string> printed;
    ForEachValue(ToMessage(job),
                 [&](const std::string& path, const Section& section,
                     const FieldDescriptor& field) { printed[path] = PrintValue(section, field); });
    return printed;
  };
  std::map<std::string, std::string> before = values(first);
  std::map<std::string, std::string> after = values(second);
  std::vector<JobDifference> differences;
  for (const KeyField& key : KeyFields()) {
    if (before[key.path] != after[key.path]) {
      differences.push_back({key.path, before[key.path], after[key.path]});
    }
  }
  return differences;
}

std::string ToYaml(const Job& job) {
  proto::Job message = ToMessage(job);
  if (job.train.epochs > 0) {
    message.mutable_train()->clear_steps();  // one of them is said
  }
  std::string text;
  PrintSection(message, 0, text);
  return text;
}

absl::StatusOr<bool> EncryptsTensors(const ServiceOptions& service, bool control_is_encrypted) {
  if (service.encryption == Encryption::kOn && !control_is_encrypted) {
    return FailedPrecondition(
        "service.encryption is on and control has no TLS, so keys would travel in plain text: give "
        "all programs --tls, or say service.encryption: off");
  }
  return service.encryption != Encryption::kOff && control_is_encrypted;
}

bool Matches(const ParameterGroup& group, const std::string& tensor) {
  return fnmatch(group.match.c_str(), tensor.c_str(), 0) == 0;
}

absl::Status SettleEpochs(TrainOptions& train, int64_t samples) {
  constexpr double kRounded = 1e-12;  // 1.1 as a double is a little more than that
  const double minibatches =
      std::ceil(train.epochs * static_cast<double>(samples) /
                static_cast<double>(train.minibatch_samples) * (1 - kRounded));
  constexpr double kMostSteps = 1e9;
  if (!(minibatches <= kMostSteps)) {
    return InvalidArgument("{} epochs of {} samples are more than {:.0f} steps", train.epochs,
                           samples, kMostSteps);
  }
  train.epochs = 0;
  train.steps = std::max<int64_t>(1, static_cast<int64_t>(minibatches));
  return CheckSchedule(train);
}

void SettleReference(Job& job, int64_t samples) {
  const TrainOptions& train = job.train;
  PreferenceOptions& preference = job.preference;
  if (train.objective != Objective::kDpo || preference.reference != Reference::kAuto ||
      !preference.has_reference()) {
    return;
  }
  // The last minibatch of a pass may be filled from the next one.
  const bool off = job.lora.rank > 0 && (train.steps - 1) * train.minibatch_samples < samples &&
                   !job.cluster.pipeline.enabled() &&
                   train.synchronization == Synchronization::kStep;
  preference.reference = off ? Reference::kAdapterOff : Reference::kPrecompute;
}

absl::Status CheckSchedule(const TrainOptions& train) {
  if (train.warmup_steps > train.steps) {
    return InvalidArgument("train.warmup_steps ({}) is more than train.steps ({})",
                           train.warmup_steps, train.steps);
  }
  if (train.decay_steps > train.steps - train.warmup_steps) {
    return InvalidArgument(
        "train.warmup_steps ({}) and train.decay_steps ({}) are more than train.steps ({})",
        train.warmup_steps, train.decay_steps, train.steps);
  }
  return absl::OkStatus();
}

namespace {

// What is left of the way from learning_rate to minimum_learning_rate when `progress` (0 to 1) of
// the decay is over.
double Remaining(DecayShape shape, double progress) {
  switch (shape) {
    case DecayShape::kLinear:
      return 1.0 - progress;
    case DecayShape::kSqrt:
      return 1.0 - std::sqrt(progress);
    case DecayShape::kCosine:
      break;
  }
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace

double LearningRateAt(const TrainOptions& train, int64_t step) {
  if (step <= train.warmup_steps) {
    return train.learning_rate * static_cast<double>(step) /
           static_cast<double>(train.warmup_steps);
  }
  // The step after the last would have the minimum: with 0 it would be paid for and change nothing.
  const auto progress_from = [&](int64_t begin) {
    return std::max<double>(0, static_cast<double>(step - begin)) /
           static_cast<double>(train.steps + 1 - begin);
  };
  const auto between = [&](double remaining) {
    return train.minimum_learning_rate +
           (train.learning_rate - train.minimum_learning_rate) * remaining;
  };
  const double progress = progress_from(train.warmup_steps);
  switch (train.schedule) {
    case LearningRateSchedule::kConstant:
      return train.learning_rate;
    case LearningRateSchedule::kLinear:
      return between(Remaining(DecayShape::kLinear, progress));
    case LearningRateSchedule::kCosine:
      return between(Remaining(DecayShape::kCosine, progress));
    case LearningRateSchedule::kWsd: {
      const int64_t most = train.steps - train.warmup_steps;
      const int64_t decay =
          std::min(most, train.decay_steps > 0 ? train.decay_steps : (train.steps + 9) / 10);
      return between(Remaining(train.decay_shape, progress_from(train.steps - decay)));
    }
    case LearningRateSchedule::kInverseSqrt:
      return std::max(train.minimum_learning_rate,
                      train.learning_rate *
                          std::sqrt(static_cast<double>(std::max<int64_t>(1, train.warmup_steps)) /
                                    static_cast<double>(step)));
    case LearningRateSchedule::kPolynomial:
      break;
  }
  return between(std::pow(1.0 - progress, train.decay_power));
}

}  // namespace shoal::plan
