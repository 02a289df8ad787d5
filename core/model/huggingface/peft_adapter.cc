#include "core/model/huggingface/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/stored_tensor.h"

namespace shoal::formats {
namespace {

using plan::Role;
using plan::TensorSpec;
using plan::UnitSpec;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";
static_assert(kA.size() == kB.size());

struct AdapterConfig {
  int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  // By module, or the end of its name.
  std::map<std::string, double> alphas;
  std::map<std::string, double> ranks;
};

// What training alone reads, is read elsewhere, or says what the names of tensors say too.
bool MeansNothingHere(const std::string& key) {
  static const auto& keys = *new std::set<std::string>{"alpha_pattern",
                                                       "auto_mapping",
                                                       "base_model_name_or_path",
                                                       "exclude_modules",
                                                       "inference_mode",
                                                       "layers_pattern",
                                                       "layers_to_transform",
                                                       "lora_alpha",
                                                       "lora_dropout",
                                                       "megatron_core",
                                                       "peft_type",
                                                       "peft_version",
                                                       "qalora_group_size",
                                                       "r",
                                                       "rank_pattern",
                                                       "revision",
                                                       "target_modules",
                                                       "task_type",
                                                       "use_rslora"};
  return keys.contains(key);
}

bool IsUnset(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json(0) || value == Json("none") ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Others begin with another model than that in its folder.
bool KeepsTheModel(const Json& init_lora_weights) {
  return init_lora_weights.is_boolean() || init_lora_weights == Json("gaussian") ||
         init_lora_weights == Json("orthogonal") || init_lora_weights == Json("eva");
}

// "; X is", where that is known.
std::string SupportedOf(const std::string& key) {
  static const auto& values = *new std::map<std::string, std::string>{
      {"bias", "\"none\""},          {"fan_in_fan_out", "false"},
      {"init_lora_weights", "true"}, {"layer_replication", "null"},
      {"lora_bias", "false"},        {"modules_to_save", "null"},
      {"target_parameters", "null"}, {"trainable_token_indices", "null"},
      {"use_dora", "false"},         {"use_qalora", "false"}};
  const auto at = values.find(key);
  return at == values.end() ? "" : fmt::format("; {} is", at->second);
}

absl::StatusOr<std::map<std::string, double>> ReadPattern(const JsonObject& config,
                                                          const std::string& key) {
  std::map<std::string, double> values;
  if (config.Find(key) == nullptr) {
    return values;
  }
  SHOAL_ASSIGN_OR_RETURN(const JsonObject pattern, config.Object(key));
  for (const auto& [name, value] : pattern.json().items()) {
    if (name.find_first_of("*+?()[]{}|^$\\") != std::string::npos) {
      return InvalidArgument("{}: a pattern that is no name is not supported", pattern.At(name));
    }
    SHOAL_ASSIGN_OR_RETURN(values[name], pattern.Number(name));
  }
  return values;
}

absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const Json json, ReadJson(path));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, path));
  SHOAL_ASSIGN_OR_RETURN(const std::string type, object.String("peft_type"));
  if (type != "LORA") {
    return InvalidArgument("{}: '{}' is not supported; LORA is", object.At("peft_type"), type);
  }
  for (const auto& [key, value] : json.items()) {
    const bool sound =
        key == "init_lora_weights" ? KeepsTheModel(value) : MeansNothingHere(key) || IsUnset(value);
    if (!sound) {
      return InvalidArgument("{}: {} is not supported{}", object.At(key),
                             value.dump().substr(0, 60), SupportedOf(key));
    }
  }
  AdapterConfig config;
  SHOAL_ASSIGN_OR_RETURN(config.rank, object.Integer("r", 1));
  SHOAL_ASSIGN_OR_RETURN(config.alpha, object.Number("lora_alpha"));
  SHOAL_ASSIGN_OR_RETURN(config.rank_stabilized, object.BoolOr("use_rslora", false));
  SHOAL_ASSIGN_OR_RETURN(config.alphas, ReadPattern(object, "alpha_pattern"));
  SHOAL_ASSIGN_OR_RETURN(config.ranks, ReadPattern(object, "rank_pattern"));
  return config;
}

// Returns what the pattern says of the module, else `other`. Where several names fit, PEFT takes
// the first in the file, which the values of a JSON object do not keep.
absl::StatusOr<double> ValueOf(const std::map<std::string, double>& pattern, const std::string& key,
                               const std::string& module, double other) {
  const std::pair<const std::string, double>* found = nullptr;
  for (const auto& entry : pattern) {
    if (module != entry.first && !module.ends_with("." + entry.first)) {
      continue;
    }
    if (found != nullptr && found->second != entry.second) {
      return InvalidArgument("{}: '{}' says {} of {}, '{}' says {}: keep one of them", key,
                             found->first, found->second, module, entry.first, entry.second);
    }
    found = &entry;
  }
  return found == nullptr ? other : found->second;
}

// Of alpha, to get the scale.
double Divisor(int64_t rank, bool rank_stabilized) {
  const auto r = static_cast<double>(rank);
  return rank_stabilized ? std::sqrt(r) : r;
}

// `rank`: that of the module's tensors.
absl::StatusOr<plan::ModuleAdapter> AdapterOf(const AdapterConfig& config,
                                              const std::string& module, int64_t rank) {
  SHOAL_ASSIGN_OR_RETURN(const double alpha,
                         ValueOf(config.alphas, "alpha_pattern", module, config.alpha));
  SHOAL_ASSIGN_OR_RETURN(const double said, ValueOf(config.ranks, "rank_pattern", module,
                                                    static_cast<double>(config.rank)));
  if (said != static_cast<double>(rank)) {
    return InvalidArgument("r and rank_pattern say {} of {}, whose tensors have rank {}", said,
                           module, rank);
  }
  return plan::ModuleAdapter{rank, alpha / Divisor(rank, config.rank_stabilized)};
}

// The inverse, without the last bits that dividing and multiplying leave.
double AlphaOf(const plan::ModuleAdapter& adapter, bool rank_stabilized) {
  const double alpha = adapter.scale * Divisor(adapter.rank, rank_stabilized);
  return Json::parse(fmt::format("{:.12g}", alpha)).get<double>();
}

// Of the module's last part: whether all that have it have an adapter.
bool AreAll(const std::string& last, const plan::ModuleAdapters& adapters,
            const std::vector<std::string>& modules) {
  return std::ranges::all_of(modules, [&](const std::string& module) {
    return !module.ends_with("." + last) || adapters.contains(module);
  });
}

std::vector<std::string> ModulesOf(const plan::ModelSpec& spec) {
  std::vector<std::string> modules;
  for (const UnitSpec& unit : plan::BuildUnits(plan::WithoutAdapters(spec))) {
    if (unit.kind == plan::UnitKind::kBlock) {
      for (const plan::AdaptedMatrix& matrix : plan::MatricesOf(unit)) {
        modules.push_back(matrix.module);
      }
    }
  }
  return modules;
}

Json AdapterConfigOf(const plan::ModelSpec& spec, const PeftWriteOptions& options) {
  const plan::ModuleAdapters adapters = plan::AdaptersByModule(spec);
  const std::vector<std::string> modules = ModulesOf(spec);
  const auto alpha_of = [&options](const plan::ModuleAdapter& adapter) {
    return AlphaOf(adapter, options.rank_stabilized);
  };
  const plan::ModuleAdapter& first = adapters.begin()->second;
  std::set<std::string> targets;
  Json ranks = Json::object();
  Json alphas = Json::object();
  for (const auto& [module, adapter] : adapters) {
    const std::string last = module.substr(module.rfind('.') + 1);
    targets.insert(AreAll(last, adapters, modules) ? last : module);
    if (adapter.rank != first.rank) {
      ranks[module] = adapter.rank;
    }
    if (alpha_of(adapter) != alpha_of(first)) {
      alphas[module] = alpha_of(adapter);
    }
  }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", options.base_model},
          {"r", first.rank},
          {"lora_alpha", alpha_of(first)},
          {"lora_dropout", options.dropout},
          {"target_modules", targets},
          {"rank_pattern", ranks},
          {"alpha_pattern", alphas},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"init_lora_weights", true},
          {"inference_mode", true},
          {"modules_to_save", nullptr},
          {"use_dora", false},
          {"use_rslora", options.rank_stabilized}};
}

}  // namespace

struct PeftAdapter::State {
  std::string folder;
  plan::ModelSpec spec;
  std::vector<UnitSpec> units;
  std::unique_ptr<SafetensorsFile> file;

  absl::StatusOr<plan::ModuleAdapters> Modules(const AdapterConfig& config) const;
  absl::Status CheckTensors() const;
};

absl::StatusOr<plan::ModuleAdapters> PeftAdapter::State::Modules(
    const AdapterConfig& config) const {
  plan::ModuleAdapters modules;
  for (const auto& [name, entry] : file->tensors()) {
    const bool is_a = name.ends_with(kA);
    if (!name.starts_with(kPrefix) || (!is_a && !name.ends_with(kB)) || entry.shape.size() != 2) {
      return InvalidArgument("{}: tensor '{}' {} is not supported", file->path(), name,
                             ShapeText(entry.shape));
    }
    const std::string module =
        name.substr(kPrefix.size(), name.size() - kPrefix.size() - kA.size());
    if (is_a) {
      auto adapter = AdapterOf(config, module, entry.shape.front());
      SHOAL_RETURN_IF_ERROR(Annotate(adapter.status(), folder + "/adapter_config.json"));
      modules[module] = *adapter;
    } else if (!file->tensors().contains(plan::AdapterTensorName(module, Role::kLoraA))) {
      return InvalidArgument("{}: tensor '{}' has no lora_A", file->path(), name);
    }
  }
  if (modules.empty()) {
    return InvalidArgument("{} has no adapter", file->path());
  }
  return modules;
}

absl::Status PeftAdapter::State::CheckTensors() const {
  for (const UnitSpec& unit : units) {
    for (const TensorSpec& tensor : unit.tensors) {
      if (unit.kind != plan::UnitKind::kAdapter) {
        continue;
      }
      const auto at = file->tensors().find(tensor.name);
      if (at == file->tensors().end()) {
        return InvalidArgument("{}: tensor '{}' is missing", file->path(), tensor.name);
      }
      if (at->second.shape != tensor.shape()) {
        return InvalidArgument("{}: tensor '{}' has shape {}, the model asks for {}", file->path(),
                               tensor.name, ShapeText(at->second.shape), ShapeText(tensor.shape()));
      }
    }
  }
  return absl::OkStatus();
}

PeftAdapter::PeftAdapter(std::unique_ptr<State> state) : state_(std::move(state)) {}
PeftAdapter::~PeftAdapter() = default;

absl::StatusOr<std::unique_ptr<PeftAdapter>> PeftAdapter::Open(const std::string& folder,
                                                               const plan::ModelSpec& base) {
  auto state = std::make_unique<State>();
  state->folder = folder;
  SHOAL_ASSIGN_OR_RETURN(const AdapterConfig config,
                         ReadAdapterConfig(folder + "/adapter_config.json"));
  SHOAL_ASSIGN_OR_RETURN(state->file, SafetensorsFile::Open(folder + "/adapter_model.safetensors"));
  SHOAL_ASSIGN_OR_RETURN(const plan::ModuleAdapters modules, state->Modules(config));
  auto spec = plan::WithModuleAdapters(base, modules);
  SHOAL_RETURN_IF_ERROR(Annotate(spec.status(), state->file->path()));
  state->spec = *std::move(spec);
  state->units = plan::BuildUnits(state->spec);
  SHOAL_RETURN_IF_ERROR(state->CheckTensors());
  return std::unique_ptr<PeftAdapter>(new PeftAdapter(std::move(state)));
}

const plan::ModelSpec& PeftAdapter::spec() const { return state_->spec; }

absl::Status PeftAdapter::ReadUnit(int unit, int64_t offset, std::span<float> out) const {
  const UnitSpec& spec = state_->units[static_cast<size_t>(unit)];
  const int64_t last = offset + std::ssize(out);
  for (const TensorSpec& tensor : spec.tensors) {
    const int64_t begin = std::max(offset, tensor.offset);
    const int64_t end = std::min(last, tensor.offset + tensor.count());
    if (begin < end) {
      const StoredTensor stored{state_->file.get(), state_->file->tensors().at(tensor.name)};
      SHOAL_RETURN_IF_ERROR(stored.Read(
          begin - tensor.offset,
          out.subspan(static_cast<size_t>(begin - offset), static_cast<size_t>(end - begin))));
    }
  }
  return absl::OkStatus();
}

absl::Status WritePeftAdapter(const std::string& folder, const plan::ModelSpec& spec,
                              const plan::UnitReader& read, const PeftWriteOptions& options) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  std::vector<UnitSpec> units = plan::BuildUnits(spec);
  std::erase_if(units, [](const UnitSpec& unit) { return unit.kind != plan::UnitKind::kAdapter; });
  SHOAL_RETURN_IF_ERROR(
      WriteTensors(folder + "/adapter_model.safetensors", units, read, options.dtype));
  if (!options.tokenizer_folder.empty()) {
    SHOAL_RETURN_IF_ERROR(CopyTokenizerFiles(options.tokenizer_folder, folder));
  }
  return WriteFileAtomically(folder + "/adapter_config.json",
                             AdapterConfigOf(spec, options).dump(2) + "\n");
}

}  // namespace shoal::formats
