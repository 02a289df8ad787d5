// Checkpoints: a folder step-XXXXXXXX with one shard per server (server/checkpoint/shard_file.h),
// job.yaml and manifest.json. It has another name until it is complete. Servers write shards while
// training goes on; the coordinator writes the manifest. Any number of servers can restore from it,
// since state is read by range of a unit.
//
// Who calls: coordinator (writes, in checkpoint_directory.h), servers (restore), the command line
// (list, verify, export).
//
// Failure: a crash at any moment leaves every complete checkpoint as it was. A damaged file is
// named, never used: a record is read whole and hashed in the memory that it is given out from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/job/job.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/model_files.h"
#include "core/model/model_spec.h"
#include "server/checkpoint/record_cache.h"
#include "server/checkpoint/shard_file.h"

namespace shoal::server {

// What validations had come to by then.
struct ValidationResult {
  int64_t step = 0;  // of the newest
  double loss = 0;
  int64_t best_step = 0;
  double best_loss = 0;
  int64_t since_best = 0;  // validations

  bool operator==(const ValidationResult&) const = default;
};

// Of the run's gradients, for train.skip_step.
struct NormsSoFar {
  double mean = 0;
  int64_t steps = 0;
  int64_t skipped_in_a_row = 0;
};

// Where the shards hold adapters alone: the model that those are of.
struct BaseModel {
  std::string folder;  // in which it was
  std::vector<formats::ModelFile> files;
};

struct Manifest {
  // of the weights; the next step to run is this + 1, which also gives the data position
  int64_t step = 0;
  double loss = 0;                             // of that step
  std::optional<ValidationResult> validation;  // none: there was none
  NormsSoFar norms;                            // up to that step
  plan::ModelSpec spec;
  BaseModel base;  // with spec.from_files
  formats::SpecialTokens special;
  std::vector<ShardEntry> shards;
};

// manifest.json, which makes a checkpoint complete. Parsed as hostile input. `job_hash` is the
// XXH3-64 of job.yaml. The text ends in a hash of itself, so that a damaged manifest is recognised.
inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kJobFile[] = "job.yaml";
std::string ManifestToJson(const Manifest& manifest, uint64_t job_hash);
absl::StatusOr<Manifest> ParseManifest(const std::string& json, const std::string& file_name,
                                       uint64_t* job_hash);

// Whether that folder has a manifest.
bool IsComplete(const std::string& folder);
// Returns "<directory>/step-00000050".
std::string CheckpointPath(const std::string& directory, int64_t step);

struct CheckpointInfo {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
};
// Returns the complete checkpoints by rising step; none if the directory does not exist.
absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(const std::string& directory);
// Same, of those that are not complete.
absl::StatusOr<std::vector<CheckpointInfo>> UnfinishedCheckpoints(const std::string& directory);
// Returns the complete checkpoint of the highest step.
absl::StatusOr<std::optional<CheckpointInfo>> NewestCheckpoint(const std::string& directory);
// A complete checkpoint, opened for reading. Thread-safe.
class Checkpoint {
 public:
  // Checks the manifest, and every shard's size, header and records. NotFound if there is no
  // manifest.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& folder);
  ~Checkpoint();

  const Manifest& manifest() const;
  const std::string& folder() const;
  absl::StatusOr<std::string> JobYaml() const;

  // Reads elements [offset, offset + out.size()) of a section of a unit's flat vector; moments
  // that were not kept are zero. Keeps one record in memory, or its error, for each thread that
  // reads. Of a base model it reads the files, once they are found to be those of the manifest.
  absl::Status Read(Section section, int unit, int64_t offset, std::span<float> out) const;
  // Same, and keeps nothing: for a checkpoint that stays open.
  absl::Status ReadOnce(Section section, int unit, int64_t offset, std::span<float> out) const;

 private:
  struct State;
  absl::Status ReadBy(RecordCache& cache, Section section, int unit, int64_t offset,
                      std::span<float> out) const;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Whether every shard is there with its size, header and records. Reads those alone.
absl::Status CheckShards(const std::string& folder, const Manifest& manifest);

// Reads every byte. Returns one status per damaged file, each naming it; empty if all are intact.
std::vector<absl::Status> VerifyCheckpoint(const std::string& folder);

// Hashes all master weights, then all first and all second moments, each in the order of units and
// of their elements: XXH3-128, as 32 hexadecimal digits. Does not depend on how the state is cut
// into partitions and shards, nor on where it lies.
absl::StatusOr<std::string> HashOfState(const Checkpoint& checkpoint);

struct ExportOptions {
  DType dtype = DType::kF32;
  std::string tokenizer_folder;  // whose files are copied; empty: none
  std::string config_folder;     // whose config.json is, if it is of this model; empty: none
  bool merge = false;            // adapters with their model, else they alone are written
  bool rslora = false;           // as lora.rslora
  double lora_dropout = 0;       // as lora.dropout
  // Goes with the tokenizer: a job's data.template; auto: what lies in its folder, which also stays
  // where a file of that name cannot be read any more.
  std::string chat_template = "auto";
};

// Writes the master weights as a Hugging Face folder; of a model with adapters these, in the form
// of PEFT, or it merged with them.
absl::Status ExportHuggingFace(const Checkpoint& checkpoint, const std::string& output,
                               const ExportOptions& options);

// Same, of a job's checkpoint as the job says, and in place of an earlier export: a crash leaves
// one of the two.
absl::Status ReplaceExport(const std::string& checkpoint, const std::string& output,
                           const plan::Job& job);

}  // namespace shoal::server
