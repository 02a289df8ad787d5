#include "core/job/job_keys.h"

#include "core/job/job_key_builder.h"

namespace shoal::plan {
namespace {

std::vector<JobKeyBinding> BuildTable() {
  TableBuilder builder;
  builder.Path(
      "model", [](Job & j) -> auto& { return j.model; }, true,
      "Hugging Face folder of the model to train.");
  AddDataKeys(builder);
  AddPlanKeys(builder);
  AddTrainKeys(builder);
  AddServiceKeys(builder);
  AddRdmaKeys(builder);
  AddClusterKeys(builder);
  AddPipelineKeys(builder);
  AddCheckpointKeys(builder);
  AddEmulateKeys(builder);
  std::vector<JobKeyBinding> table = builder.Build();
  const Job defaults;
  for (JobKeyBinding& binding : table) {
    binding.key.default_value =
        binding.required ? "required" : binding.print(defaults).value_or("none");
  }
  return table;
}

}  // namespace

const std::vector<JobKeyBinding>& JobKeyBindings() {
  static const auto& table = *new std::vector<JobKeyBinding>(BuildTable());
  return table;
}

std::string QuoteYaml(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

std::vector<JobKey> JobKeys() {
  std::vector<JobKey> keys;
  for (const JobKeyBinding& binding : JobKeyBindings()) {
    keys.push_back(binding.key);
  }
  return keys;
}

std::string JobKeyTable() {
  std::string text = "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const JobKey& key : JobKeys()) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.path, key.type,
                        key.default_value == "required" || key.default_value == "none"
                            ? key.default_value
                            : "`" + key.default_value + "`",
                        key.help);
  }
  return text;
}

}  // namespace shoal::plan