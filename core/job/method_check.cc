#include "core/job/method_check.h"

#include <string_view>
#include <utility>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

// Whether an adapter that is gone on from says it itself.
bool IsOfAnAdapter(std::string_view key) { return key != "lora.quantize" && key != "lora.dropout"; }

absl::Status CheckPatterns(const LoraOptions& lora, const JobSources& sources) {
  for (const LoraPattern& pattern : lora.patterns) {
    if (pattern.match.empty()) {
      return InvalidArgument("{}: a pattern of lora.patterns has no match",
                             sources.at("lora.patterns").where);
    }
    if (!pattern.rank.has_value() && !pattern.alpha.has_value()) {
      return InvalidArgument("{}: the pattern '{}' of lora.patterns has neither rank nor alpha",
                             sources.at("lora.patterns").where, pattern.match);
    }
  }
  return absl::OkStatus();
}

}  // namespace

// An adapter that is gone on from says what adapters there are, and without one a rank is what is
// needed. A rank of 0 above the rest, as an override gives it, sets them aside.
absl::Status SettleLora(Job& job, const proto::LoraOptions& said, const JobSources& sources,
                        const std::string& file_name) {
  const LoraOptions& lora = job.lora;
  const Contradicts contradicts(sources, file_name);
  const JobSource* const rank = Highest(sources, {"lora.rank"});
  const LoraOptions defaults;
  const std::pair<const char*, bool> changed[] = {
      {"lora.rank", lora.rank != defaults.rank},
      {"lora.alpha", lora.alpha != defaults.alpha},
      {"lora.rslora", lora.rslora != defaults.rslora},
      {"lora.targets", lora.targets != defaults.targets},
      {"lora.patterns", lora.patterns != defaults.patterns},
      {"lora.dropout", lora.dropout != defaults.dropout},
      {"lora.quantize", lora.quantize != defaults.quantize}};
  for (const auto& [key, is_changed] : changed) {
    const JobSource* const own = Highest(sources, {key});
    if (own == nullptr || (key == std::string_view("lora.targets") && said.targets().empty())) {
      continue;
    }
    if (!lora.from.empty() && IsOfAnAdapter(key)) {
      if (is_changed) {
        return contradicts(key, "lora.from", "the adapter there says it");
      }
      continue;  // a resolved job may say every key
    }
    const bool set_aside = rank != nullptr && (!is_changed || rank->level > own->level);
    if (!lora.enabled() && !set_aside) {
      return InvalidArgument("{}: {} needs lora.rank", own->where, key);
    }
  }
  if (!lora.enabled()) {
    job.lora = {};
    return absl::OkStatus();
  }
  if (lora.rank > 0 && said.targets().empty() && sources.contains("lora.targets")) {
    return InvalidArgument("{}: lora.targets is empty: name matrices, or leave it out for all",
                           sources.at("lora.targets").where);
  }
  SHOAL_RETURN_IF_ERROR(CheckPatterns(lora, sources));
  if (lora.dropout > 0 && job.train.device == DeviceKind::kCuda) {
    return contradicts("lora.dropout", "train.device", "it is not for GPUs yet");
  }
  return job.emulate.enabled()
             ? contradicts(lora.from.empty() ? "lora.rank" : "lora.from", "emulate.shape",
                           "its time is that of training the whole model")
             : absl::OkStatus();
}

void SettleDefaults(const JobSources& sources, Job& job) {
  const bool pairs = job.train.objective == Objective::kDpo;
  const bool adapts = job.lora.enabled();
  if (!pairs && !adapts) {
    return;
  }
  if (!sources.contains("train.learning_rate")) {
    job.train.learning_rate = !pairs   ? LoraOptions::kLearningRate
                              : adapts ? PreferenceOptions::kLearningRateOfAdapters
                                       : PreferenceOptions::kLearningRate;
  }
  if (!sources.contains("train.weight_decay")) {
    job.train.weight_decay = 0;
  }
}

namespace {

// What a loss compares with goes with the loss, and with how the job runs.
absl::Status CheckReference(const Job& job, const JobSources& sources,
                            const std::string& file_name) {
  const Contradicts contradicts(sources, file_name);
  const PreferenceOptions& preference = job.preference;
  const char* const key = "preference.reference";
  if (preference.reference == Reference::kNone && preference.has_reference()) {
    return contradicts(key, "preference.loss", "only simpo and orpo need none");
  }
  const bool off = preference.reference == Reference::kAdapterOff;
  if ((off || preference.reference == Reference::kPrecompute) && !preference.has_reference()) {
    return contradicts(key, "preference.loss", "this loss has none");
  }
  if (off && !job.lora.enabled()) {
    return InvalidArgument("{}: {} adapter-off needs adapters: say lora.rank",
                           Place(sources, key, key, file_name), key);
  }
  if (off && !job.lora.from.empty()) {
    return contradicts(key, "lora.from",
                       "without that adapter the model is not what it is before step 1; say "
                       "precompute");
  }
  return off && job.train.synchronization == Synchronization::kLayer
             ? contradicts(key, "train.synchronization",
                           "adapter-off has passes of its own, and workers wait for each other at "
                           "every layer; say precompute")
             : absl::OkStatus();
}

}  // namespace

// What is said of pairs goes with them alone.
absl::Status CheckPreference(const Job& job, const JobSources& sources,
                             const std::string& file_name) {
  const PreferenceOptions& preference = job.preference;
  const PreferenceOptions defaults;
  const Contradicts contradicts(sources, file_name);
  const bool pairs = job.train.objective == Objective::kDpo;
  using Loss = PreferenceLoss;
  const std::pair<const char*, bool> of_losses[] = {
      {"preference.loss", pairs || preference.loss == defaults.loss},
      {"preference.beta", pairs || preference.beta == defaults.beta},
      {"preference.sft_weight", pairs || preference.sft_weight == defaults.sft_weight},
      {"preference.reference", pairs || preference.reference == defaults.reference},
      {"preference.label_smoothing",
       preference.loss == Loss::kRobust || preference.label_smoothing == defaults.label_smoothing},
      {"preference.gamma", preference.loss == Loss::kSimpo || preference.gamma == defaults.gamma},
      {"preference.lambda",
       preference.loss == Loss::kOrpo || preference.lambda == defaults.lambda}};
  for (const auto& [key, fits] : of_losses) {
    if (!fits) {
      return pairs ? contradicts(key, "preference.loss", "it is of another loss")
                   : contradicts(key, "train.objective", "it is of pairs, for dpo");
    }
  }
  if (!pairs) {
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(CheckReference(job, sources, file_name));
  if (job.data.train_on != TrainOn::kAll) {
    return contradicts("data.train_on", "train.objective",
                       "what is learnt of pairs is what was chosen");
  }
  return job.emulate.enabled() ? contradicts("train.objective", "emulate.shape",
                                             "nothing is computed, and so no pair is compared")
                               : absl::OkStatus();
}

}  // namespace shoal::plan
