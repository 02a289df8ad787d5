#include <filesystem>

#include "core/base/file.h"
#include "gtest/gtest.h"
#include "tests/mistakes/mistake.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;

using Change = std::function<void(const Place&)>;

// A copy of the shared model, changed, that `shoal model show` refuses.
Mistake Changed(const std::string& name, const Change& change, std::vector<std::string> says) {
  return {.name = name,
          .command = "model show {at}/model",
          .says = std::move(says),
          .make = [change](Place& place) {
            CopyModel(place);
            change(place);
            return nullptr;
          }};
}

Change Edited(const std::string& from, const std::string& to) {
  return [=](const Place& place) { Edit(place, "config.json", from, to); };
}

Change WeightsOf(const std::string& bytes) {
  return [=](const Place& place) {
    EXPECT_TRUE(WriteFileAtomically(place.at + "/model/model.safetensors", bytes).ok());
  };
}

// Positive: so many bytes stay. Negative: so many go.
Change Cut(int64_t bytes) {
  return [=](const Place& place) {
    const fs::path path = place.at + "/model/model.safetensors";
    const auto size = static_cast<int64_t>(fs::file_size(path));
    fs::resize_file(path, static_cast<uintmax_t>(bytes < 0 ? size + bytes : bytes));
  };
}

Change Removed(const std::string& file) {
  return [=](const Place& place) { EXPECT_TRUE(fs::remove(place.at + "/model/" + file)); };
}

std::vector<Mistake> Weights() {
  return {
      Changed("GitLfsPointer",
              WeightsOf("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n"),
              {"{at}/model/model.safetensors: this is a git-lfs pointer", "run git lfs pull"}),
      Changed("WeightsCutShort", Cut(-1000),
              {"{at}/model/model.safetensors: tensor 'model.layers.1.mlp.down_proj.weight'",
               "truncated?"}),
      Changed("WeightsCutInTheHeader", Cut(1000),
              {"{at}/model/model.safetensors: not a safetensors file, or truncated"}),
      Changed("EmptyWeights", Cut(0),
              {"{at}/model/model.safetensors: not a safetensors file (0 bytes)"}),
      Changed("PickledWeights", WeightsOf("PK\x03\x04 and so on for some more bytes"),
              {"{at}/model/model.safetensors: not a safetensors file"}),
      Changed("NoWeights", Removed("model.safetensors"),
              {"{at}/model has neither model.safetensors nor model.safetensors.index.json",
               "give the folder of a Hugging Face model"}),
      Changed("ShapeMismatch", Edited("\"intermediate_size\": 128", "\"intermediate_size\": 64"),
              {"{at}/model: tensor 'model.layers.0.mlp.", "config.json asks for [64, 48]"}),
      Changed("LayerTooMany", Edited("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
              {"{at}/model: tensor 'model.layers.2.", "is missing"}),
  };
}

std::vector<Mistake> Configs() {
  return {
      Changed(
          "UnknownFamily", Edited("LlamaForCausalLM", "Llama4ForCausalLM"),
          {"{at}/model/config.json:2: architectures: 'Llama4ForCausalLM' is not supported; "
           "gemma2, gemma3_text, llama, mistral, olmo2, olmo3, phi3, qwen2, qwen3, smollm3 are"}),
      Changed("RopeOfAnotherKind",
              Edited("\"use_cache\"",
                     R"("rope_scaling": {"rope_type": "dynamic", "factor": 4}, "use_cache")"),
              {"{at}/model/config.json:20: rope_scaling.rope_type: 'dynamic' is not supported; "
               "default, linear, llama3, yarn are"}),
      Changed("SlidingWindow", Edited("\"use_cache\"", "\"sliding_window\": 64, \"use_cache\""),
              {"{at}/model/config.json:20: sliding_window is not supported for llama"}),
      Changed("Quantised",
              Edited("\"use_cache\"",
                     "\"quantization_config\": {\"quant_method\": \"gptq\"}, \"use_cache\""),
              {"{at}/model/config.json:20: quantization_config.quant_method: 'gptq' is not "
               "supported; give "
               "the unquantised model"}),
      Changed("AnotherActivation", Edited("\"silu\"", "\"gelu\""),
              {"{at}/model/config.json:14: hidden_act: 'gelu' is not supported; silu is"}),
      Changed("BrokenConfig", Edited("\"model_type\":", "\"model_type\""),
              {"{at}/model/config.json: not valid JSON at byte"}),
      Changed("NoConfig", Removed("config.json"),
              {"{at}/model has no config.json; give the folder of a Hugging Face model"}),
      {.name = "FileForAModel",
       .command = "model show {shared}/train.jsonl",
       .says = {"{shared}/train.jsonl is no folder; a model is a folder with config.json"}},
      {.name = "HubName",
       .files = {{"job.yaml", "model: meta-llama/Llama-3.2-1B\ndata: {train: x}\n"}},
       .command = "train {at}/job.yaml",
       .says = {"{at}/job.yaml:1: model: {at}/meta-llama/Llama-3.2-1B is no folder",
                "huggingface-cli download NAME --local-dir FOLDER"}},
      {.name = "HubNameOfAPlan",
       .files = {{"job.yaml", "model: meta-llama/Llama-3.2-1B\ndata: {train: x}\n"}},
       .command = "plan {at}/job.yaml",
       .says = {"{at}/job.yaml:1: model: {at}/meta-llama/Llama-3.2-1B is no folder",
                "huggingface-cli download"}},
      {.name = "HubNameToGenerate",
       .command = "generate --model meta-llama/Llama-3.2-1B --prompt x",
       .says = {"meta-llama/Llama-3.2-1B is no folder", "huggingface-cli download"}},
  };
}

std::vector<Mistake> Tokenizers() {
  Mistake to_generate =
      Changed("NoTokenizerToGenerate", Removed("tokenizer.json"),
              {"cannot open {at}/model/tokenizer.json: No such file or directory"});
  to_generate.command = "generate --model {at}/model --prompt x";
  Mistake to_train = Changed("NoTokenizerToTrain", Removed("tokenizer.json"),
                             {"{shared}/train.jsonl:1: text needs the model's tokenizer.json",
                              "without it, give input_ids and labels"});
  to_train.command = "data inspect {shared}/train.jsonl --model {at}/model";
  const Change no_chat = [](const Place& place) {
    Edit(place, "tokenizer.json", "<|im_start|>", "<|xx_start|>");
  };
  Mistake chat = Changed(
      "NoChatTokens", no_chat,
      {"template chatml needs the token <|im_start|>", "template: plain needs no chat tokens"});
  chat.command = "data inspect {shared}/train.jsonl --model {at}/model --template chatml";
  const Change another_kind = [](const Place& place) {
    Edit(place, "tokenizer.json", "\"BPE\"", "\"Unigram\"");
  };
  Mistake kind =
      Changed("TokenizerOfAnotherKind", another_kind, {"{at}/model/tokenizer.json", "Unigram"});
  kind.command = "data inspect {shared}/train.jsonl --model {at}/model";
  Mistake rows =
      Changed("TokenizerAboveTheVocabulary", Edited("\"vocab_size\": 304", "\"vocab_size\": 16"),
              {"{at}/model: the tokenizer has 300 tokens and the model 16 rows"});
  rows.command = "data inspect {shared}/train.jsonl --model {at}/model";
  Mistake positions = Changed("PromptAbovePositions", Edited("131072", "2"),
                              {"the prompt has 27 tokens, the model takes 2 in all"});
  positions.command = "generate --model {at}/model --prompt abcdefghijklmnopqrstuvwxyz";
  return {to_generate, to_train, chat, kind, rows, positions};
}

std::vector<Mistake> Inits() {
  return {
      {.name = "UnknownShapeToInit",
       .command = "model init --shape 9b --output {at}/new",
       .says = {"--shape 9b: neither a file nor one of the known shapes 1.3b"}},
      {.name = "InitOnAModel",
       .command = "model init --shape tiny --output {shared}/model",
       .says = {"{shared}/model holds a model already: remove it or choose another --output"}},
      {.name = "VocabularyBelowTheTokenizer",
       .command = "model init --shape tiny --tokenizer {shared}/tokenizer --vocabulary 10 "
                  "--output {at}/new",
       .says = {"vocabulary 10 of the model is smaller than the tokenizer's 300",
                "raise --vocabulary"}},
      {.name = "InitUnderAFile",
       .command = "model init --shape tiny --output {shared}/train.jsonl/new",
       .says = {"{shared}/train.jsonl/new", "Not a directory"}},
  };
}

}  // namespace

std::vector<Mistake> ModelMistakes() {
  std::vector<Mistake> all;
  for (const auto& part : {Weights(), Configs(), Tokenizers(), Inits()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace shoal::testing
