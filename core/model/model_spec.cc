#include "core/model/model_spec.h"

#include <algorithm>
#include <map>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/model/adapters.h"
#include "core/model/family.h"

namespace shoal::plan {
namespace {

// Far above any model; keeps products within 64 bits.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr double kMaxAttentionFactor = 100;  // libraries come to 1.5
constexpr double kMaxScalar = 1e6;           // of scores and logits; libraries have up to 256
constexpr int64_t kMaxLayers = 10000;        // each is a unit with its own list of tensors

// Appends tensors one after the other, each aligned.
class UnitBuilder {
 public:
  UnitBuilder(const Family& family, int index, UnitKind kind, std::string name)
      : family_(family), layer_(index - 1) {
    unit_.index = index;
    unit_.kind = kind;
    unit_.name = std::move(name);
  }
  void Add(Role role, int64_t rows, int64_t columns = 0) {
    TensorSpec tensor{.role = role,
                      .name = TensorName(family_, role, layer_),
                      .rows = rows,
                      .columns = columns,
                      .offset = unit_.count,
                      .stored = {.name = StoredName(family_, role, layer_)}};
    unit_.count = RoundUp(unit_.count + tensor.count(), kTensorAlignment);
    unit_.tensors.push_back(std::move(tensor));
  }
  UnitSpec Build() {
    std::map<std::string_view, int64_t> rows;  // of the files' tensors
    for (TensorSpec& tensor : unit_.tensors) {
      tensor.stored.first_row = rows[tensor.stored.name];
      rows[tensor.stored.name] += tensor.rows;
    }
    for (TensorSpec& tensor : unit_.tensors) {
      tensor.stored.rows = rows[tensor.stored.name];
    }
    return std::move(unit_);
  }

 private:
  const Family& family_;
  const int64_t layer_;
  UnitSpec unit_;
};

UnitSpec BuildBlock(const ModelSpec& spec, const Family& family, int64_t layer) {
  const BlockKind& kind = spec.block(layer);
  const Attention& attention = kind.attention;
  const Mlp& mlp = kind.mlp;
  const int64_t q = attention.q_size();
  const int64_t kv = attention.kv_size();
  UnitBuilder unit(family, static_cast<int>(layer) + 1, UnitKind::kBlock,
                   fmt::format("block.{}", layer));
  if (kind.norms_inputs()) {
    unit.Add(Role::kInputNorm, spec.hidden);
  }
  unit.Add(Role::kQ, q, spec.hidden);
  unit.Add(Role::kK, kv, spec.hidden);
  unit.Add(Role::kV, kv, spec.hidden);
  if (attention.qkv_bias) {
    unit.Add(Role::kQBias, q);
    unit.Add(Role::kKBias, kv);
    unit.Add(Role::kVBias, kv);
  }
  if (attention.qk_norm != QkNorm::kNone) {
    unit.Add(Role::kQNorm, q / attention.q_norms());
    unit.Add(Role::kKNorm, kv / attention.k_norms());
  }
  unit.Add(Role::kOutput, spec.hidden, q);
  if (attention.output_bias) {
    unit.Add(Role::kOutputBias, spec.hidden);
  }
  if (kind.norms_outputs()) {
    unit.Add(Role::kAttentionOutputNorm, spec.hidden);
  }
  if (kind.norms_inputs()) {
    unit.Add(Role::kMlpNorm, spec.hidden);
  }
  unit.Add(Role::kGate, mlp.intermediate, spec.hidden);
  unit.Add(Role::kUp, mlp.intermediate, spec.hidden);
  unit.Add(Role::kDown, spec.hidden, mlp.intermediate);
  if (mlp.bias) {
    unit.Add(Role::kGateBias, mlp.intermediate);
    unit.Add(Role::kUpBias, mlp.intermediate);
    unit.Add(Role::kDownBias, spec.hidden);
  }
  if (kind.norms_outputs()) {
    unit.Add(Role::kMlpOutputNorm, spec.hidden);
  }
  return unit.Build();
}

absl::Status ValidateScaling(const RopeScaling& scaling, double theta) {
  if (!(scaling.factor >= 1)) {
    return InvalidArgument("rope_scaling: factor is {}, must be at least 1", scaling.factor);
  }
  if (scaling.type == RopeType::kLlama3 &&
      !(scaling.high_frequency_factor > scaling.low_frequency_factor &&
        scaling.low_frequency_factor > 0 && scaling.original_max_positions > 0)) {
    return InvalidArgument(
        "rope_scaling: need factor >= 1 and 0 < low_freq_factor < high_freq_factor");
  }
  if (scaling.type == RopeType::kYarn &&
      !(scaling.beta_fast >= scaling.beta_slow && scaling.beta_slow > 0 &&
        scaling.original_max_positions > 0 && scaling.attention_factor > 0 &&
        scaling.attention_factor <= kMaxAttentionFactor && theta > 1)) {
    return InvalidArgument(
        "rope_scaling: yarn needs 0 < beta_slow <= beta_fast, attention_factor above 0 and at most "
        "{} and rope_theta > 1",
        kMaxAttentionFactor);
  }
  return absl::OkStatus();
}

absl::Status ValidateDivisors(const RopeScaling& scaling, int64_t dims) {
  for (const auto& [name, divisors] : {std::pair("short_factor", &scaling.short_divisors),
                                       std::pair("long_factor", &scaling.long_divisors)}) {
    if (std::ssize(*divisors) != dims / 2) {
      return InvalidArgument("rope_scaling: {} has {} numbers; rotary dimensions {} need {}", name,
                             divisors->size(), dims, dims / 2);
    }
    for (const double divisor : *divisors) {
      if (!(divisor > 0)) {
        return InvalidArgument("rope_scaling: {} has {}, must be positive", name, divisor);
      }
    }
  }
  return scaling.original_max_positions > 1 && scaling.attention_factor > 0 &&
                 scaling.attention_factor <= kMaxAttentionFactor
             ? absl::OkStatus()
             : InvalidArgument(
                   "rope_scaling: longrope needs original_max_position_embeddings above 1 and "
                   "attention_factor above 0 and at most {}",
                   kMaxAttentionFactor);
}

absl::Status ValidateRope(const Attention& attention) {
  const Rope& rope = attention.rope;
  if (!(rope.theta > 0)) {
    return InvalidArgument("rope_theta is {}, must be positive", rope.theta);
  }
  if (attention.rotary_dims() % 2 != 0 || attention.rotary_dims() > attention.head_dim ||
      rope.dims < 0) {
    return InvalidArgument("{} of {} dimensions of a head turn; an even number of them can",
                           rope.dims, attention.head_dim);
  }
  if (rope.scaling && rope.scaling->type == RopeType::kLongRope) {
    return ValidateDivisors(*rope.scaling, attention.rotary_dims());
  }
  return rope.scaling ? ValidateScaling(*rope.scaling, rope.theta) : absl::OkStatus();
}

BlockKind WithoutWindowAndRope(BlockKind kind) {
  kind.attention.rope = Rope();
  kind.attention.window = 0;
  return kind;
}

absl::Status ValidateKinds(const ModelSpec& spec) {
  if (!spec.kind_of_layer.empty() && std::ssize(spec.kind_of_layer) != spec.layers) {
    return InvalidArgument("the model has {} kinds of blocks, and names those of {} of {} layers",
                           spec.kinds.size(), spec.kind_of_layer.size(), spec.layers);
  }
  for (const uint8_t kind : spec.kind_of_layer) {
    if (kind >= spec.kinds.size()) {
      return InvalidArgument("a layer is of kind {}, the model has {}", kind, spec.kinds.size());
    }
  }
  for (const BlockKind& kind : spec.kinds) {
    if (kind.attention.window < 0) {
      return InvalidArgument("sliding_window is {}, must not be negative", kind.attention.window);
    }
    SHOAL_RETURN_IF_ERROR(ValidateRope(kind.attention));
    if (WithoutWindowAndRope(kind) != WithoutWindowAndRope(spec.kinds.front())) {
      return InvalidArgument("kinds of blocks differ in more than window and rotary embedding");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const ModelSpec& spec) {
  if (FindFamily(spec.family) == nullptr) {
    return InvalidArgument("model_type '{}' is no known family", spec.family);
  }
  if (spec.kinds.empty()) {
    return InvalidArgument("the model has no kind of block");
  }
  const Attention& attention = spec.attention();
  const std::pair<const char*, int64_t> sizes[] = {{"vocab_size", spec.vocabulary},
                                                   {"hidden_size", spec.hidden},
                                                   {"intermediate_size", spec.mlp().intermediate},
                                                   {"num_hidden_layers", spec.layers},
                                                   {"num_attention_heads", attention.heads},
                                                   {"num_key_value_heads", attention.kv_heads},
                                                   {"head_dim", attention.head_dim},
                                                   {"max_position_embeddings", spec.max_positions}};
  for (const auto& [name, value] : sizes) {
    if (value <= 0 || value > kMaxDimension) {
      return InvalidArgument("{} is {}, must be between 1 and {}", name, value, kMaxDimension);
    }
  }
  if (spec.layers > kMaxLayers) {
    return InvalidArgument("num_hidden_layers is {}, must be at most {}", spec.layers, kMaxLayers);
  }
  if (attention.heads % attention.kv_heads != 0) {
    return InvalidArgument("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                           attention.heads, attention.kv_heads);
  }
  if (attention.head_dim % 2 != 0) {
    return InvalidArgument("head_dim {} is odd; rotary embedding needs pairs", attention.head_dim);
  }
  if (attention.q_size() > kMaxDimension) {
    return InvalidArgument("num_attention_heads x head_dim = {} is too large", attention.q_size());
  }
  if (!(spec.norm_epsilon > 0)) {
    return InvalidArgument("rms_norm_eps is {}, must be positive", spec.norm_epsilon);
  }
  const std::pair<const char*, double> scalars[] = {
      {"query_pre_attn_scalar", attention.query_scalar},
      {"attn_logit_softcapping", attention.softcap},
      {"final_logit_softcapping", spec.logits_softcap}};
  for (const auto& [name, value] : scalars) {
    if (!(value >= 0 && value <= kMaxScalar)) {
      return InvalidArgument("{} is {}, must be between 0 and {}", name, value, kMaxScalar);
    }
  }
  SHOAL_RETURN_IF_ERROR(ValidateKinds(spec));
  return ValidateAdapters(spec);
}

ModelSpec FirstLayers(ModelSpec spec, int64_t layers) {
  spec.layers = std::min(spec.layers, layers);
  std::erase_if(spec.adapters, [&](const Adapter& adapter) { return adapter.layer >= layers; });
  if (!spec.kind_of_layer.empty()) {
    spec.kind_of_layer.resize(static_cast<size_t>(spec.layers));
  }
  return spec;
}

bool IsNorm(Role role) {
  return role == Role::kInputNorm || role == Role::kQNorm || role == Role::kKNorm ||
         role == Role::kAttentionOutputNorm || role == Role::kMlpNorm ||
         role == Role::kMlpOutputNorm || role == Role::kFinalNorm;
}

bool IsToResidual(Role role) { return role == Role::kOutput || role == Role::kDown; }

const TensorSpec* UnitSpec::Find(Role role) const {
  for (const TensorSpec& tensor : tensors) {
    if (tensor.role == role) {
      return &tensor;
    }
  }
  return nullptr;
}

std::vector<UnitSpec> BuildUnits(const ModelSpec& spec) {
  const Family& family = FamilyOf(spec);
  std::vector<UnitSpec> units;
  units.reserve(static_cast<size_t>(spec.layers) + 2);
  UnitBuilder embedding(family, 0, UnitKind::kEmbedding, "embedding");
  embedding.Add(Role::kEmbedding, spec.vocabulary, spec.hidden);
  units.push_back(embedding.Build());
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    units.push_back(BuildBlock(spec, family, layer));
  }
  UnitBuilder head(family, static_cast<int>(spec.layers) + 1, UnitKind::kHead, "head");
  head.Add(Role::kFinalNorm, spec.hidden);
  if (!spec.tied_embeddings) {
    head.Add(Role::kHead, spec.vocabulary, spec.hidden);
  }
  units.push_back(head.Build());
  AppendAdapterUnits(spec, units);
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
  const Attention& attention = spec.attention();
  const double elements =
      static_cast<double>(spec.hidden) *
          static_cast<double>(2 * attention.q_size() + 2 * attention.kv_size()) +
      3.0 * static_cast<double>(spec.hidden) * static_cast<double>(spec.mlp().intermediate);
  return 2.0 * tokens * elements;
}

double BlockAttentionFlops(const ModelSpec& spec, double squared_tokens) {
  // Scores and their product with V: 2 * 2 * n^2 * q_size, half of it below the diagonal.
  return 2.0 * squared_tokens * static_cast<double>(spec.attention().q_size());
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

}  // namespace shoal::plan
