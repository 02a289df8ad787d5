#include "cli/model_command.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "CLI/CLI.hpp"
#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/model/family.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/model_spec.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

// A matrix product's columns are best a multiple of this.
constexpr int64_t kVocabularyMultiple = 16;

absl::StatusOr<plan::ModelSpec> ShapeOf(const std::string& shape) {
  if (const auto named = plan::NamedShape(shape)) {
    return *named;
  }
  std::error_code error;
  if (fs::is_directory(shape, error)) {
    return formats::ReadModelSpec(shape);
  }
  if (fs::exists(shape, error)) {
    SHOAL_ASSIGN_OR_RETURN(const std::string json, ReadFile(shape, 16 * kMiB));
    return formats::ParseModelSpec(json, shape);
  }
  return InvalidArgument("--shape {}: neither a file nor one of the known shapes {}", shape,
                         fmt::join(plan::NamedShapes(), ", "));
}

// The shape with the vocabulary the options ask for, checked against the tokenizer.
absl::StatusOr<plan::ModelSpec> SpecFor(const ModelInitOptions& options,
                                        int64_t tokenizer_vocabulary) {
  SHOAL_ASSIGN_OR_RETURN(plan::ModelSpec spec, ShapeOf(options.shape));
  if (options.vocabulary > 0) {
    spec.vocabulary = options.vocabulary;
  } else if (tokenizer_vocabulary > 0 && plan::NamedShape(options.shape).has_value()) {
    spec.vocabulary = RoundUp(tokenizer_vocabulary, kVocabularyMultiple);
  }
  if (spec.vocabulary < tokenizer_vocabulary) {
    return InvalidArgument(
        "vocabulary {} of the model is smaller than the tokenizer's {}: raise --vocabulary",
        spec.vocabulary, tokenizer_vocabulary);
  }
  SHOAL_RETURN_IF_ERROR(Annotate(plan::Validate(spec), options.shape));
  return spec;
}

int64_t WeightBytesOf(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") {
      bytes += static_cast<int64_t>(it->file_size(error));
    }
  }
  return bytes;
}

std::string NameOf(plan::Norms norms) {
  switch (norms) {
    case plan::Norms::kPre:
      return "pre";
    case plan::Norms::kPost:
      return "post";
    case plan::Norms::kSandwich:
      return "sandwich";
  }
  __builtin_unreachable();
}

std::string NameOf(plan::QkvBias bias) {
  switch (bias) {
    case plan::QkvBias::kNever:
      return "never";
    case plan::QkvBias::kByKey:
      return "by attention_bias";
    case plan::QkvBias::kAlways:
      return "always";
  }
  __builtin_unreachable();
}

std::string NameOf(plan::QkNorm norm) {
  switch (norm) {
    case plan::QkNorm::kNone:
      return "none";
    case plan::QkNorm::kHead:
      return "head";
    case plan::QkNorm::kWhole:
      return "whole";
  }
  __builtin_unreachable();
}

int64_t LargestWindow(const plan::ModelSpec& spec) {
  int64_t window = 0;
  for (const plan::BlockKind& kind : spec.kinds) {
    window = std::max(window, kind.attention.window);
  }
  return window;
}

bool IsScaled(const plan::ModelSpec& spec) {
  return std::ranges::any_of(
      spec.kinds, [](const auto& kind) { return kind.attention.rope.scaling.has_value(); });
}

std::string RopeText(const plan::ModelSpec& spec) {
  int64_t layers = 0;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    layers += spec.block(layer).attention.rope.turns ? 1 : 0;
  }
  return fmt::format("{}{}{}", spec.attention().rope.theta, IsScaled(spec) ? " (scaled)" : "",
                     layers < spec.layers ? fmt::format(" in {} layers", layers) : "");
}

std::string WindowText(const plan::ModelSpec& spec) {
  int64_t layers = 0;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    layers += spec.block(layer).attention.window > 0 ? 1 : 0;
  }
  return layers == 0            ? "none"
         : layers < spec.layers ? fmt::format("{} in {} layers", LargestWindow(spec), layers)
                                : std::to_string(LargestWindow(spec));
}

nlohmann::json SpecJson(const plan::ModelSpec& spec) {
  const plan::Attention& attention = spec.attention();
  const plan::Mlp& mlp = spec.mlp();
  return {{"architecture", plan::FamilyOf(spec).architecture},
          {"vocabulary", spec.vocabulary},
          {"hidden", spec.hidden},
          {"intermediate", mlp.intermediate},
          {"layers", spec.layers},
          {"heads", attention.heads},
          {"kv_heads", attention.kv_heads},
          {"head_dim", attention.head_dim},
          {"max_positions", spec.max_positions},
          {"rope_theta", attention.rope.theta},
          {"rope_scaling", IsScaled(spec)},
          {"norm_epsilon", spec.norm_epsilon},
          {"window", LargestWindow(spec)},
          {"norms", NameOf(spec.kind().norms)},
          {"attention_bias", attention.qkv_bias},
          {"qk_norm", NameOf(attention.qk_norm)},
          {"tied_embeddings", spec.tied_embeddings},
          {"parameters", plan::ParameterCount(spec)}};
}

void PrintSpec(const std::string& folder, const plan::ModelSpec& spec, Streams& streams) {
  const plan::Attention& attention = spec.attention();
  const plan::Mlp& mlp = spec.mlp();
  Table table({{"property"}, {"value", Table::Align::kRight}});
  table.Add({"architecture", std::string(plan::FamilyOf(spec).architecture)});
  table.Add({"parameters", WithThousands(plan::ParameterCount(spec))});
  table.Add({"weights on disk", FormatBytes(WeightBytesOf(folder))});
  table.Add({"vocabulary", WithThousands(spec.vocabulary)});
  table.Add({"hidden size", WithThousands(spec.hidden)});
  table.Add({"intermediate size", WithThousands(mlp.intermediate)});
  table.Add({"layers", std::to_string(spec.layers)});
  table.Add({"attention heads", std::to_string(attention.heads)});
  table.Add({"key/value heads", std::to_string(attention.kv_heads)});
  table.Add({"head dimension", std::to_string(attention.head_dim)});
  table.Add({"positions", WithThousands(spec.max_positions)});
  table.Add({"rope theta", RopeText(spec)});
  table.Add({"window of attention", WindowText(spec)});
  table.Add({"norms", NameOf(spec.kind().norms)});
  table.Add({"bias on q, k, v", attention.qkv_bias ? "yes" : "no"});
  table.Add({"norms of q and k", NameOf(attention.qk_norm)});
  table.Add({"tied embeddings", spec.tied_embeddings ? "yes" : "no"});
  streams.out << table.Render(streams.out_terminal) << "\n";

  Table units({{"unit"}, {"tensors", Table::Align::kRight}, {"parameters", Table::Align::kRight}});
  for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
    int64_t count = 0;
    for (const plan::TensorSpec& tensor : unit.tensors) {
      count += tensor.count();
    }
    units.Add({unit.name, std::to_string(unit.tensors.size()), WithThousands(count)});
  }
  streams.out << units.Render(streams.out_terminal);
}

}  // namespace

absl::StatusOr<ExitCode> RunModelInit(const ModelInitOptions& options, Streams& streams) {
  std::error_code error;
  if (fs::exists(options.output + "/config.json", error)) {
    return AlreadyExists("{} holds a model already: remove it or choose another --output",
                         options.output);
  }
  formats::HfWriteOptions write;
  SHOAL_ASSIGN_OR_RETURN(write.dtype, ParseDType(options.dtype));
  int64_t tokenizer_vocabulary = 0;
  if (!options.tokenizer.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const auto tokenizer, worker::Tokenizer::Load(options.tokenizer));
    tokenizer_vocabulary = tokenizer->vocabulary();
    write.tokenizer_folder = options.tokenizer;
    SHOAL_ASSIGN_OR_RETURN(write.special, formats::ReadSpecialTokens(options.tokenizer));
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, SpecFor(options, tokenizer_vocabulary));
  SHOAL_RETURN_IF_ERROR(CreateDirectories(options.output));
  SHOAL_RETURN_IF_ERROR(formats::InitHfModel(options.output, spec, options.seed, write));
  if (options.json) {
    nlohmann::json line = SpecJson(spec);
    line["event"] = "model";
    line["folder"] = options.output;
    PrintJson(streams.out, line);
  } else {
    streams.out << fmt::format("{}: {} parameters, {} layers, vocabulary {}, seed {}\n",
                               options.output, WithThousands(plan::ParameterCount(spec)),
                               spec.layers, spec.vocabulary, options.seed);
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunModelShow(const ModelShowOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const auto model, formats::HfModel::Open(options.folder));
  const plan::ModelSpec& spec = model->spec();
  if (!options.json) {
    PrintSpec(options.folder, spec, streams);
    return ExitCode::kDone;
  }
  nlohmann::json line = SpecJson(spec);
  line["event"] = "model";
  line["folder"] = options.folder;
  line["weight_bytes"] = WeightBytesOf(options.folder);
  nlohmann::json units = nlohmann::json::array();
  for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
    units.push_back(
        {{"name", unit.name}, {"tensors", unit.tensors.size()}, {"elements", unit.count}});
  }
  line["units"] = units;
  PrintJson(streams.out, line);
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunModelFamilies(bool json, Streams& streams) {
  Table table({{"family"}, {"architecture"}, {"norms"}, {"bias on q, k, v"}, {"norms of q and k"}});
  for (const plan::Family* family : plan::Families()) {
    const std::string name(family->model_type);
    const std::string architecture(family->architecture);
    const std::string bias = NameOf(family->qkv_bias);
    table.Add({name, architecture, NameOf(family->norms), bias, NameOf(family->qk_norm)});
    if (json) {
      PrintJson(streams.out, {{"event", "family"},
                              {"family", name},
                              {"architecture", architecture},
                              {"norms", NameOf(family->norms)},
                              {"qkv_bias", bias},
                              {"qk_norm", NameOf(family->qk_norm)}});
    }
  }
  if (!json) {
    streams.out << table.Render(streams.out_terminal);
  }
  return ExitCode::kDone;
}

void AddModel(CLI::App& app, CommandAction& action) {
  CLI::App* model =
      AddCommand(app, "model", "Make or describe a model folder", "shoal model show path/to/model");
  model->require_subcommand(1);

  auto init = std::make_shared<ModelInitOptions>();
  CLI::App* init_command =
      AddCommand(*model, "init", "Random weights in Hugging Face form",
                 "shoal model init --shape 6m --seed 1 --tokenizer tokenizer --output model");
  init_command
      ->add_option("--shape", init->shape,
                   fmt::format("A config.json, or one of {}", fmt::join(plan::NamedShapes(), ", ")))
      ->required();
  init_command->add_option("--seed", init->seed, "Of the weights")->capture_default_str();
  init_command->add_option("--output", init->output, "Folder to make")->required();
  init_command->add_option("--tokenizer", init->tokenizer,
                           "Folder whose tokenizer goes with the model");
  init_command
      ->add_option("--vocabulary", init->vocabulary,
                   "Tokens (default: the tokenizer's or the shape's)")
      ->check(AtLeast(1));
  init_command->add_option("--dtype", init->dtype, "fp32 or bf16, of the weights on disk")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  init_command->add_flag("--json", init->json, "A JSON line instead of text");
  init_command->callback([init, &action] {
    action = [init](Streams& streams) { return RunModelInit(*init, streams); };
  });

  auto show = std::make_shared<ModelShowOptions>();
  CLI::App* show_command =
      AddCommand(*model, "show", "Shape, parameters and units of a model folder",
                 "shoal model show path/to/model");
  show_command->add_option("folder", show->folder, "Hugging Face folder")->required();
  show_command->add_flag("--json", show->json, "A JSON line instead of tables");
  show_command->callback([show, &action] {
    action = [show](Streams& streams) { return RunModelShow(*show, streams); };
  });

  auto json = std::make_shared<bool>(false);
  CLI::App* families_command = AddCommand(
      *model, "families", "The families of models that can be read", "shoal model families");
  families_command->add_flag("--json", *json, "JSON lines instead of a table");
  families_command->callback([json, &action] {
    action = [json](Streams& streams) { return RunModelFamilies(*json, streams); };
  });
}

}  // namespace shoal::cli
