#include "core/model/model_spec.h"

#include <map>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::plan {
namespace {

// Far above any model; keeps products within 64 bits.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 10000;  // each is a unit with its own list of tensors

// Appends tensors one after the other, each aligned.
class UnitBuilder {
 public:
  UnitBuilder(int index, UnitKind kind, std::string name) {
    unit_.index = index;
    unit_.kind = kind;
    unit_.name = std::move(name);
  }
  UnitBuilder& Add(std::string name, int64_t rows, int64_t columns = 0) {
    TensorSpec tensor{
        .name = std::move(name), .rows = rows, .columns = columns, .offset = unit_.count};
    unit_.count = RoundUp(unit_.count + tensor.count(), kTensorAlignment);
    unit_.tensors.push_back(std::move(tensor));
    return *this;
  }
  UnitSpec Build() { return std::move(unit_); }

 private:
  UnitSpec unit_;
};

UnitSpec BuildBlock(const ModelSpec& spec, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  UnitBuilder unit(static_cast<int>(layer) + 1, UnitKind::kBlock, fmt::format("block.{}", layer));
  unit.Add(prefix + "input_layernorm.weight", spec.hidden);
  unit.Add(attention + "q_proj.weight", spec.q_size(), spec.hidden);
  unit.Add(attention + "k_proj.weight", spec.kv_size(), spec.hidden);
  unit.Add(attention + "v_proj.weight", spec.kv_size(), spec.hidden);
  if (spec.attention_bias) {
    unit.Add(attention + "q_proj.bias", spec.q_size());
    unit.Add(attention + "k_proj.bias", spec.kv_size());
    unit.Add(attention + "v_proj.bias", spec.kv_size());
  }
  unit.Add(attention + "o_proj.weight", spec.hidden, spec.q_size());
  if (spec.output_bias) {
    unit.Add(attention + "o_proj.bias", spec.hidden);
  }
  unit.Add(prefix + "post_attention_layernorm.weight", spec.hidden);
  unit.Add(mlp + "gate_proj.weight", spec.intermediate, spec.hidden);
  unit.Add(mlp + "up_proj.weight", spec.intermediate, spec.hidden);
  unit.Add(mlp + "down_proj.weight", spec.hidden, spec.intermediate);
  if (spec.mlp_bias) {
    unit.Add(mlp + "gate_proj.bias", spec.intermediate);
    unit.Add(mlp + "up_proj.bias", spec.intermediate);
    unit.Add(mlp + "down_proj.bias", spec.hidden);
  }
  return unit.Build();
}

ModelSpec Llama(int64_t vocabulary, int64_t hidden, int64_t intermediate, int64_t layers,
                int64_t heads, int64_t kv_heads, bool tied) {
  ModelSpec spec;
  spec.vocabulary = vocabulary;
  spec.hidden = hidden;
  spec.intermediate = intermediate;
  spec.layers = layers;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_dim = hidden / heads;
  spec.max_positions = 131072;
  spec.tied_embeddings = tied;
  return spec;
}

ModelSpec Qwen2(int64_t vocabulary, int64_t hidden, int64_t intermediate, int64_t layers,
                int64_t heads, int64_t kv_heads, bool tied) {
  ModelSpec spec = Llama(vocabulary, hidden, intermediate, layers, heads, kv_heads, tied);
  spec.architecture = "Qwen2ForCausalLM";
  spec.attention_bias = true;
  spec.rope_theta = 1e6;
  spec.norm_epsilon = 1e-6;
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

absl::Status Validate(const ModelSpec& spec) {
  const std::pair<const char*, int64_t> sizes[] = {{"vocab_size", spec.vocabulary},
                                                   {"hidden_size", spec.hidden},
                                                   {"intermediate_size", spec.intermediate},
                                                   {"num_hidden_layers", spec.layers},
                                                   {"num_attention_heads", spec.heads},
                                                   {"num_key_value_heads", spec.kv_heads},
                                                   {"head_dim", spec.head_dim},
                                                   {"max_position_embeddings", spec.max_positions}};
  for (const auto& [name, value] : sizes) {
    if (value <= 0 || value > kMaxDimension) {
      return InvalidArgument("{} is {}, must be between 1 and {}", name, value, kMaxDimension);
    }
  }
  if (spec.layers > kMaxLayers) {
    return InvalidArgument("num_hidden_layers is {}, must be at most {}", spec.layers, kMaxLayers);
  }
  if (spec.heads % spec.kv_heads != 0) {
    return InvalidArgument("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                           spec.heads, spec.kv_heads);
  }
  if (spec.head_dim % 2 != 0) {
    return InvalidArgument("head_dim {} is odd; rotary embedding needs pairs", spec.head_dim);
  }
  if (spec.q_size() > kMaxDimension) {
    return InvalidArgument("num_attention_heads x head_dim = {} is too large", spec.q_size());
  }
  if (!(spec.norm_epsilon > 0) || !(spec.rope_theta > 0)) {
    return InvalidArgument("rms_norm_eps and rope_theta must be positive");
  }
  if (spec.rope_scaling &&
      !(spec.rope_scaling->factor >= 1 &&
        spec.rope_scaling->high_frequency_factor > spec.rope_scaling->low_frequency_factor &&
        spec.rope_scaling->low_frequency_factor > 0 &&
        spec.rope_scaling->original_max_positions > 0)) {
    return InvalidArgument(
        "rope_scaling: need factor >= 1 and 0 < low_freq_factor < high_freq_factor");
  }
  return absl::OkStatus();
}

const TensorSpec& UnitSpec::tensor(const std::string& tensor_name) const {
  for (const TensorSpec& candidate : tensors) {
    if (candidate.name == tensor_name) {
      return candidate;
    }
  }
  SHOAL_CHECK(!"a tensor of that name is in the unit");
  __builtin_unreachable();
}

std::vector<UnitSpec> BuildUnits(const ModelSpec& spec) {
  std::vector<UnitSpec> units;
  units.reserve(static_cast<size_t>(spec.layers) + 2);
  units.push_back(UnitBuilder(0, UnitKind::kEmbedding, "embedding")
                      .Add("model.embed_tokens.weight", spec.vocabulary, spec.hidden)
                      .Build());
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    units.push_back(BuildBlock(spec, layer));
  }
  UnitBuilder head(static_cast<int>(spec.layers) + 1, UnitKind::kHead, "head");
  head.Add("model.norm.weight", spec.hidden);
  if (!spec.tied_embeddings) {
    head.Add("lm_head.weight", spec.vocabulary, spec.hidden);
  }
  units.push_back(head.Build());
  return units;
}

int64_t ParameterCount(const ModelSpec& spec) {
  int64_t total = 0;
  for (const UnitSpec& unit : BuildUnits(spec)) {
    for (const TensorSpec& tensor : unit.tensors) {
      total += tensor.count();
    }
  }
  return total;
}

double BlockMatrixFlops(const ModelSpec& spec, double tokens) {
  const double elements =
      static_cast<double>(spec.hidden) *
          static_cast<double>(2 * spec.q_size() + 2 * spec.kv_size()) +
      3.0 * static_cast<double>(spec.hidden) * static_cast<double>(spec.intermediate);
  return 2.0 * tokens * elements;
}

double BlockAttentionFlops(const ModelSpec& spec, double squared_tokens) {
  // Scores and their product with V: 2 * 2 * n^2 * q_size, half of it below the diagonal.
  return 2.0 * squared_tokens * static_cast<double>(spec.q_size());
}

double HeadFlops(const ModelSpec& spec, double tokens) {
  return 2.0 * tokens * static_cast<double>(spec.vocabulary) * static_cast<double>(spec.hidden);
}

double ForwardFlops(const ModelSpec& spec, int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return static_cast<double>(spec.layers) *
             (BlockMatrixFlops(spec, n) + BlockAttentionFlops(spec, n * n)) +
         HeadFlops(spec, n);
}

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
