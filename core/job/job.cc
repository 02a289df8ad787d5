#include "core/job/job.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>

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

void Resolve(Job& job, const std::string& base_directory, const MachineOffer& machine) {
  for (std::string* path : {&job.model, &job.data.train, &job.checkpoint.directory}) {
    // An absolute path replaces the base.
    *path = (std::filesystem::path(base_directory) / *path).lexically_normal().string();
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
  std::string text;
  PrintSection(ToMessage(job), 0, text);
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

double LearningRateAt(const TrainOptions& train, int64_t step) {
  if (step <= train.warmup_steps) {
    return train.learning_rate * static_cast<double>(step) /
           static_cast<double>(train.warmup_steps);
  }
  if (train.schedule == LearningRateSchedule::kConstant) {
    return train.learning_rate;
  }
  // The step after the last would have the minimum: with 0 it would be paid for and change nothing.
  const auto decay_steps = static_cast<double>(train.steps + 1 - train.warmup_steps);
  const double progress = static_cast<double>(step - train.warmup_steps) / decay_steps;
  const double remaining = train.schedule == LearningRateSchedule::kLinear
                               ? 1.0 - progress
                               : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return train.minimum_learning_rate +
         (train.learning_rate - train.minimum_learning_rate) * remaining;
}

}  // namespace shoal::plan
