// config.json of small models, to change.
#pragma once

#include "core/base/json/json.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {

inline Json Llama() {
  return Json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8,
        "num_key_value_heads": 4})");
}
inline Json Qwen2() {
  Json config = Llama();
  config["architectures"] = {"Qwen2ForCausalLM"};
  return config;
}
inline absl::StatusOr<plan::ModelSpec> Parse(const Json& config) {
  return ParseModelSpec(config.dump(), "config.json");
}

}  // namespace shoal::formats
