#include <map>

#include "core/model/model_spec.h"

namespace shoal::plan {
namespace {

ModelSpec Llama(int64_t vocabulary, int64_t hidden, int64_t intermediate, int64_t layers,
                int64_t heads, int64_t kv_heads, bool tied) {
  ModelSpec spec{.family = "llama",
                 .vocabulary = vocabulary,
                 .hidden = hidden,
                 .layers = layers,
                 .max_positions = 131072,
                 .tied_embeddings = tied};
  spec.kinds = {{.attention = {.heads = heads, .kv_heads = kv_heads, .head_dim = hidden / heads},
                 .mlp = {.intermediate = intermediate}}};
  return spec;
}

ModelSpec Qwen2(int64_t vocabulary, int64_t hidden, int64_t intermediate, int64_t layers,
                int64_t heads, int64_t kv_heads, bool tied) {
  ModelSpec spec = Llama(vocabulary, hidden, intermediate, layers, heads, kv_heads, tied);
  spec.family = "qwen2";
  spec.norm_epsilon = 1e-6;
  spec.kinds[0].attention.qkv_bias = true;
  spec.kinds[0].attention.rope.theta = 1e6;
  return spec;
}

const std::map<std::string, ModelSpec>& Shapes() {
  static const std::map<std::string, ModelSpec> shapes = {
      {"tiny", Llama(512, 48, 128, 2, 4, 2, true)},
      {"6m", Llama(1024, 256, 768, 6, 8, 4, true)},
      {"25m", Llama(4096, 512, 1408, 8, 8, 4, true)},
      {"124m", Llama(50304, 768, 2048, 12, 12, 12, true)},
      {"1.3b", Llama(32000, 2048, 5504, 24, 16, 16, false)},
      {"1.5b", Qwen2(151936, 1536, 8960, 28, 12, 2, true)},
      {"7b", Qwen2(152064, 3584, 18944, 28, 28, 4, false)},
      {"14b", Qwen2(152064, 5120, 13824, 48, 40, 8, false)},
      {"32b", Qwen2(152064, 5120, 27648, 64, 40, 8, false)},
  };
  return shapes;
}

}  // namespace

std::optional<ModelSpec> NamedShape(const std::string& name) {
  const auto found = Shapes().find(name);
  return found == Shapes().end() ? std::nullopt : std::optional<ModelSpec>(found->second);
}

std::vector<std::string> NamedShapes() {
  std::vector<std::string> names;
  for (const auto& [name, spec] : Shapes()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace shoal::plan
