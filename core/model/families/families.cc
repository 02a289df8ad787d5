#include "core/base/check.h"
#include "core/model/family.h"
#include "fmt/format.h"

namespace shoal::plan {

extern const Family kGemma2;
extern const Family kGemma3;
extern const Family kLlama;
extern const Family kMistral;
extern const Family kOlmo2;
extern const Family kOlmo3;
extern const Family kPhi3;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kSmolLm3;

namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";

std::string_view CommonName(Role role) {
  switch (role) {
    case Role::kEmbedding:
      return "model.embed_tokens.weight";
    case Role::kInputNorm:
      return "input_layernorm.weight";
    case Role::kQ:
      return "self_attn.q_proj.weight";
    case Role::kK:
      return "self_attn.k_proj.weight";
    case Role::kV:
      return "self_attn.v_proj.weight";
    case Role::kQBias:
      return "self_attn.q_proj.bias";
    case Role::kKBias:
      return "self_attn.k_proj.bias";
    case Role::kVBias:
      return "self_attn.v_proj.bias";
    case Role::kQNorm:
      return "self_attn.q_norm.weight";
    case Role::kKNorm:
      return "self_attn.k_norm.weight";
    case Role::kOutput:
      return "self_attn.o_proj.weight";
    case Role::kOutputBias:
      return "self_attn.o_proj.bias";
    case Role::kAttentionOutputNorm:  // no block has this one and kMlpNorm by their common names
      return "post_attention_layernorm.weight";
    case Role::kMlpNorm:
      return "post_attention_layernorm.weight";
    case Role::kGate:
      return "mlp.gate_proj.weight";
    case Role::kUp:
      return "mlp.up_proj.weight";
    case Role::kDown:
      return "mlp.down_proj.weight";
    case Role::kGateBias:
      return "mlp.gate_proj.bias";
    case Role::kUpBias:
      return "mlp.up_proj.bias";
    case Role::kDownBias:
      return "mlp.down_proj.bias";
    case Role::kMlpOutputNorm:
      return "post_feedforward_layernorm.weight";
    case Role::kFinalNorm:
      return "model.norm.weight";
    case Role::kHead:
      return "lm_head.weight";
    case Role::kLoraA:
    case Role::kLoraB:
      break;  // AdapterTensorName
  }
  SHOAL_CHECK(!"a role has a name");
  __builtin_unreachable();
}

bool IsInBlock(Role role) {
  return role != Role::kEmbedding && role != Role::kFinalNorm && role != Role::kHead;
}

std::string_view NameBy(std::span<const NameRule> rules, Role role, std::string_view otherwise) {
  for (const NameRule& rule : rules) {
    if (rule.role == role && !rule.name.empty()) {
      return rule.name;
    }
  }
  return otherwise;
}

std::string InLayer(Role role, int64_t layer, std::string_view name) {
  return IsInBlock(role) ? fmt::format("{}{}.{}", kLayerPrefix, layer, name) : std::string(name);
}

}  // namespace

std::span<const Family* const> Families() {
  static constexpr const Family* kFamilies[] = {&kGemma2, &kGemma3, &kLlama, &kMistral, &kOlmo2,
                                                &kOlmo3,  &kPhi3,   &kQwen2, &kQwen3,   &kSmolLm3};
  return kFamilies;
}

const Family* FindFamily(std::string_view model_type) {
  for (const Family* family : Families()) {
    if (family->model_type == model_type) {
      return family;
    }
  }
  return nullptr;
}

const Family& FamilyOf(const ModelSpec& spec) {
  const Family* family = FindFamily(spec.family);
  SHOAL_CHECK(family != nullptr);
  return *family;
}

std::string TensorName(const Family& family, Role role, int64_t layer) {
  return InLayer(role, layer, NameBy(family.names, role, CommonName(role)));
}

std::string StoredName(const Family& family, Role role, int64_t layer) {
  const std::string_view own = NameBy(family.names, role, CommonName(role));
  return InLayer(role, layer, NameBy(family.joined, role, own));
}

}  // namespace shoal::plan
