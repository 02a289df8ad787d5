// The shape of a model and the units in which it is fetched and pushed.
//
// A unit is what moves together: the embedding, one transformer block, the final norm + head. It is
// one flat vector of its tensors in a fixed order with known offsets; coordinator, servers, workers
// and checkpoints all derive the same layout from the same ModelSpec, so no layout ever travels.
// Pure: no I/O (core/model/huggingface reads config.json).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/model/gate.h"
#include "core/model/optimizer.h"
#include "core/model/quantize.h"

namespace shoal::plan {

// How rotary frequencies are scaled for longer sequences than a model was first trained on
// (config.json: rope_type of rope_scaling or rope_parameters).
enum class RopeType {
  kLlama3,
  kLinear,    // all divided by the factor
  kYarn,      // those that turn seldom in the original length divided, those that turn often kept
  kLongRope,  // each divided by a number of its own, or another where sequences are long
};
struct RopeScaling {
  RopeType type = RopeType::kLlama3;
  double factor = 8.0;
  double low_frequency_factor = 1.0;  // llama3's
  double high_frequency_factor = 4.0;
  int64_t original_max_positions = 8192;  // not linear's
  double beta_fast = 32.0;                // yarn's: turns in the original length
  double beta_slow = 1.0;
  bool truncate = true;           // yarn's: the range blended is rounded to whole frequencies
  double attention_factor = 1.0;  // yarn's and longrope's: of cosines and sines
  // Longrope's, one for each frequency: where no sequence is longer than the original length, and
  // where one may be.
  std::vector<double> short_divisors;
  std::vector<double> long_divisors;

  bool operator==(const RopeScaling&) const = default;
};

struct Rope {
  bool turns = true;  // false: queries and keys stay as they are, at any position
  double theta = 10000.0;
  int64_t dims = 0;  // of each head, from its first, that turn; 0: all
  std::optional<RopeScaling> scaling;

  bool operator==(const Rope&) const = default;
};

// Whether queries and keys are normed before they turn: each head's D by itself, or all of Q and
// all of KV.
enum class QkNorm { kNone, kHead, kWhole };

// Grouped-query attention with rotary embedding.
struct Attention {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;       // keys that a query sees, with its own; 0: all before it
  double query_scalar = 0;  // scores are divided by its square root; 0: head_dim
  double softcap = 0;       // c: scores s become c tanh(s / c); 0: none
  bool qkv_bias = false;
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  Rope rope;

  int64_t q_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  int64_t rotary_dims() const { return rope.dims > 0 ? rope.dims : head_dim; }
  // Parts of a row of q, and of k, that are normed each by itself.
  int64_t q_norms() const { return qk_norm == QkNorm::kWhole ? 1 : heads; }
  int64_t k_norms() const { return qk_norm == QkNorm::kWhole ? 1 : kv_heads; }

  bool operator==(const Attention&) const = default;
};

// down(act(gate x) * up x).
struct Mlp {
  int64_t intermediate = 0;
  Gate gate = Gate::kSilu;
  bool bias = false;  // on gate, up and down

  bool operator==(const Mlp&) const = default;
};

// Which norms a block has: of the inputs of attention and MLP (kPre), of their outputs, before
// these are added to the residual stream (kPost), or of both (kSandwich).
enum class Norms { kPre, kPost, kSandwich };

// What a transformer block computes. A model has few kinds, and says which layer is of which.
struct BlockKind {
  Attention attention;
  Mlp mlp;
  Norms norms = Norms::kPre;

  bool norms_inputs() const { return norms != Norms::kPost; }
  bool norms_outputs() const { return norms != Norms::kPre; }

  bool operator==(const BlockKind&) const = default;
};

// What a tensor is in the mathematics. Its name follows from role, family and layer.
enum class Role {
  kEmbedding,
  kInputNorm,
  kQ,
  kK,
  kV,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kOutput,
  kOutputBias,
  kAttentionOutputNorm,
  kMlpNorm,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
  kMlpOutputNorm,
  kFinalNorm,
  kHead,
  kLoraA,
  kLoraB,
};

// Of a matrix W[out, in] of a block: y = x W^T + scale (x A^T) B^T, with A[rank, in], B[out, rank].
struct Adapter {
  int64_t layer = 0;
  Role role = Role::kQ;  // of the matrix; of the first where files hold several as one
  int64_t rank = 0;
  double scale = 1;

  bool operator==(const Adapter&) const = default;
};

struct ModelSpec {
  std::string family;  // config.json's model_type: a row of core/model/families
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t max_positions = 0;
  double norm_epsilon = 1e-5;
  int64_t norm_offset = 0;         // norms multiply by their weights plus this
  bool scaled_embeddings = false;  // by the square root of hidden
  double logits_softcap = 0;       // c: logits z become c tanh(z / c); 0: none
  bool tied_embeddings = false;
  std::vector<BlockKind> kinds = {BlockKind()};
  std::vector<uint8_t> kind_of_layer;  // index in `kinds`; empty: every layer is of the first
  // By layer, in the order of its tensors. Where there are any, all else is frozen.
  std::vector<Adapter> adapters;
  Quantize quantize = Quantize::kNone;  // of a model with adapters
  bool from_files = false;  // of a model with adapters: workers read all else from its files

  const BlockKind& block(int64_t layer) const {
    return kinds[kind_of_layer.empty() ? 0 : kind_of_layer[static_cast<size_t>(layer)]];
  }
  // Sizes and norms, which all kinds share (Validate).
  const BlockKind& kind() const { return kinds.front(); }
  const Attention& attention() const { return kinds.front().attention; }
  const Mlp& mlp() const { return kinds.front().mlp; }

  bool operator==(const ModelSpec&) const = default;
};

// Returns the model's first `layers` layers, or all if it has no more.
ModelSpec FirstLayers(ModelSpec spec, int64_t layers);

// Checks what every other function here relies on: the family is known, sizes are positive and the
// same in all kinds, heads divide, head_dim is even, nothing overflows.
absl::Status Validate(const ModelSpec& spec);

// Whether it is the weight of a norm.
bool IsNorm(Role role);
// Whether it is the matrix that writes to the residual stream.
bool IsToResidual(Role role);

// Rows [first_row, first_row + TensorSpec::rows) of a tensor of a file, whose name is the tensor's
// own where it is not one of several.
struct StoredRows {
  std::string name;
  int64_t first_row = 0;
  int64_t rows = 0;  // of the file's tensor
};

// One tensor inside a unit. Matrices are row-major [rows, columns] as in Hugging Face files (out
// features first); vectors have columns = 0.
struct TensorSpec {
  Role role = Role::kEmbedding;
  std::string name;  // Hugging Face name, e.g. "model.layers.3.self_attn.q_proj.weight"
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t offset = 0;  // in elements from the unit's start
  StoredRows stored;

  int64_t rank() const { return columns == 0 ? 1 : 2; }
  int64_t count() const { return columns == 0 ? rows : rows * columns; }
  std::vector<int64_t> shape() const {
    return rank() == 1 ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, columns};
  }
  // Of the file's tensor, and the element of it that is our first.
  std::vector<int64_t> stored_shape() const {
    return rank() == 1 ? std::vector<int64_t>{stored.rows}
                       : std::vector<int64_t>{stored.rows, columns};
  }
  int64_t stored_offset() const { return stored.first_row * (rank() == 1 ? 1 : columns); }
  bool decays() const { return rank() >= 2; }  // only matrices have weight decay
};

enum class UnitKind { kEmbedding, kBlock, kHead, kAdapter };

struct UnitSpec {
  // 0 is the embedding, 1..layers the blocks, layers + 1 the head, then come those of adapters.
  int index = 0;
  UnitKind kind = UnitKind::kBlock;
  std::string name;  // "embedding", "block.0", ..., "head", "block.0.adapter", ...
  std::vector<TensorSpec> tensors;
  // Elements, including the padding that makes each tensor start at a multiple of kTensorAlignment
  // elements; padding is zero and has zero gradient.
  int64_t count = 0;
  // No tensor of it trains (plan::JobUnits): its weights are of version 0 forever, and nobody
  // computes, pushes or keeps anything by which they would change.
  bool frozen = false;
  bool nf4 = false;  // frozen, its weights published and fetched as core/model/nf4_partition.h says
  // Frozen, its weights read from the model's files: no server has any of it.
  bool from_files = false;
  Moments moments;  // of its optimizer (plan::JobUnits); of what is frozen they are not kept

  // Returns the tensor of that role, null if the unit has none.
  const TensorSpec* Find(Role role) const;
};

// Every tensor starts at a multiple of this many elements: 64 B for fp32, 32 B for bf16.
inline constexpr int64_t kTensorAlignment = 16;

// Returns the units of a model, in order of use. Tensors within a block are in this order: input
// norm, q, k, v (weights, then biases if any), norms of q and k if any, output, norm of attention's
// output, MLP norm, gate, up, down, norm of the MLP's output; which norms, a kind says. With tied
// embeddings the head unit holds only the final norm, and the head's matrix is the embedding unit's
// tensor. Units of a layer's adapters follow the head (core/model/adapters.h).
std::vector<UnitSpec> BuildUnits(const ModelSpec& spec);

// Counts parameters, without padding.
int64_t ParameterCount(const ModelSpec& spec);

// Floating-point operations of one block's forward: those of its matrices and those of attention,
// for sequences of `tokens` tokens in total whose squared lengths sum to `squared_tokens` (counting
// half for causal attention).
double BlockMatrixFlops(const ModelSpec& spec, double tokens);
double BlockAttentionFlops(const ModelSpec& spec, double squared_tokens);
// For the head's forward.
double HeadFlops(const ModelSpec& spec, double tokens);

// For the whole model over one sequence; a backward pass costs twice that.
double ForwardFlops(const ModelSpec& spec, int64_t tokens);

// Known shapes for `shoal model init --shape NAME` and the planner: "tiny" (a few 10K parameters,
// for tests), "6m", "25m", "124m", "1.3b", "1.5b", "7b", "14b", "32b". Nullopt for an unknown name.
std::optional<ModelSpec> NamedShape(const std::string& name);
std::vector<std::string> NamedShapes();

// Supplies elements [offset, offset + out.size()) of a unit's flat vector. May be called from
// several threads.
using UnitReader = std::function<absl::Status(int unit, int64_t offset, std::span<float> out)>;

}  // namespace shoal::plan
