// The job file: one YAML document that says everything about a run. docs/job-file.md documents it
// key by key.
//
// Precedence: defaults < file < --set. Unknown keys are errors that name the nearest known key;
// contradictions are errors that name both keys. The resolved job is written to every checkpoint as
// YAML and sent to every process as a message.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/job/assignment.h"
#include "core/job/device_kind.h"
#include "core/job/pipeline_options.h"
#include "core/model/optimizer.h"
#include "core/model/quantize.h"

namespace shoal::proto {
class Job;
}

namespace shoal::plan {

enum class ComputeType { kAuto, kFp32, kBf16 };
enum class LearningRateSchedule {
  kConstant,
  kLinear,
  kCosine,
  kWsd,  // warm-up, stable, decay over the last decay_steps
  kInverseSqrt,
  kPolynomial
};
enum class DecayShape { kLinear, kSqrt, kCosine };
enum class ExportType { kFp32, kBf16 };
enum class OversizePolicy { kError, kSkip, kTruncate };
enum class Objective { kSft, kPretrain, kDpo };
// Which messages of the assistant are learnt. kEach: of every one a sample, as if the conversation
// ended with it. kAnswer: all, without their reasoning.
enum class TrainOn { kAll, kLast, kEach, kAnswer };
// How documents become samples: each is cut by itself, or all are one text.
enum class Documents { kPack, kConcatenate };
enum class Template { kPlain, kChatML, kLlama3, kAuto };
inline constexpr std::array<std::string_view, 4> kTemplateNames = {"plain", "chatml", "llama3",
                                                                   "auto"};
constexpr std::string_view Name(Template chat_template) {
  return kTemplateNames[static_cast<size_t>(chat_template)];
}
// nullopt: it is the path of one.
std::optional<Template> TemplateNamed(std::string_view name);
// InvalidArgument for what is neither a name nor the path of a .jinja file.
absl::Status CheckTemplate(std::string_view name);
// Whether it is a day like 2026-11-27.
bool IsDay(const std::string& text);
enum class Accumulate { kFloat, kExact };
// How long a worker keeps fetched weights: for one use of the layer, or for the whole step.
enum class Residency { kAuto, kLayer, kStep };
// When a worker pushes gradients: after each microbatch, or once per step after summing locally.
enum class PushPolicy { kAuto, kMicrobatch, kStep };

// Loss on samples that are not trained on.
struct ValidationOptions {
  std::string path;         // samples, or a token file
  double fraction = 0;      // of the training data, in place of a path
  int64_t every_steps = 0;  // 0: after the last step alone
  int64_t limit = 0;        // samples; 0: all
  bool at_start = false;    // also before the first step

  bool enabled() const { return !path.empty() || fraction > 0; }
  // Whether it is due with the weights after `step` steps (0: before the first) of so many.
  bool DueAfter(int64_t step, int64_t steps) const {
    return enabled() &&
           (step == 0 ? at_start : step == steps || (every_steps > 0 && step % every_steps == 0));
  }
  bool operator==(const ValidationOptions&) const = default;
};

// A part of a mixture.
struct DataSource {
  std::string path;              // samples, or a token file
  std::optional<double> weight;  // of all weights' sum: its part of each pass

  bool operator==(const DataSource&) const = default;
};

struct DataOptions {
  std::string train;                   // samples (core/data/data_files.h), or a token file
  std::vector<DataSource> mixture;     // in place of train; all have a weight, or none
  std::string chat_template = "auto";  // key: template; its name, or a file's path
  std::map<std::string, std::string> template_arguments;
  std::string date;  // that templates are told; empty: the day on which the run began
  TrainOn train_on = TrainOn::kAll;
  Documents documents = Documents::kPack;  // with train.objective: pretrain
  std::map<std::string, std::string>
      fields;  // our name -> the file's, e.g. {prompt: question, completion: answer}
  int64_t max_sequence_tokens = 2048;
  int64_t microbatch_tokens = 4096;
  OversizePolicy oversize = OversizePolicy::kError;
  uint64_t seed = 1;  // order of samples in each data pass
  bool shuffle = true;
  ValidationOptions validation;

  // What is trained on: train, or what is mixed. Never empty in a job that was checked.
  std::vector<std::string> paths() const;
  // Of the mixture; empty: none.
  std::vector<double> weights() const;

  bool operator==(const DataOptions&) const = default;
};

// How steps are planned.
struct AssignmentOptions {
  Assignment assignment = Assignment::kAuto;
  CostSource cost = CostSource::kFlops;
  int64_t pack_groups = 0;  // 0: see plan::PackGroups

  bool operator==(const AssignmentOptions&) const = default;
};

// Tensors that train in another way than the rest.
struct ParameterGroup {
  std::string match;  // of tensors' names, as a shell's patterns of file names
  double learning_rate_scale = 1;
  std::optional<double> weight_decay;  // in place of train.weight_decay, for vectors too
  bool freeze = false;                 // not updated

  bool operator==(const ParameterGroup&) const = default;
};

// Ends a job before its last step.
struct EarlyStopOptions {
  int64_t patience = 0;  // validations in a row that bring no better loss; 0: off
  double minimum_change = 0;

  bool operator==(const EarlyStopOptions&) const = default;
};

// Which steps change no weight.
struct SkipStepOptions {
  bool nonfinite = false;  // whose loss or gradients are not finite; else they end the job
  double norm_factor = 0;  // times the mean gradient norm that is too much; 0: off
  int64_t window = 100;    // steps of the running mean

  bool operator==(const SkipStepOptions&) const = default;
};

struct TrainOptions {
  Objective objective = Objective::kSft;
  int64_t steps = 100;
  double epochs = 0;  // passes over the data, which SettleEpochs makes steps of; 0: steps are given
  int64_t minibatch_samples = 32;
  DeviceKind device = DeviceKind::kAuto;
  ComputeType compute = ComputeType::kAuto;
  Synchronization synchronization = Synchronization::kStep;
  double learning_rate = 1e-4;
  LearningRateSchedule schedule = LearningRateSchedule::kCosine;
  int64_t warmup_steps = 0;
  double minimum_learning_rate = 0;            // where the schedule ends
  int64_t decay_steps = 0;                     // of wsd; 0: a tenth of the steps
  DecayShape decay_shape = DecayShape::kSqrt;  // of wsd
  double decay_power = 1;                      // of polynomial
  Optimizer optimizer = Optimizer::kAdamW;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip_norm = 1.0;  // 0: no clipping
  Residency residency = Residency::kAuto;
  PushPolicy push = PushPolicy::kAuto;
  int64_t prefetch_units = 2;
  int64_t threads_per_worker = 0;  // 0: the machine's cores divided by the local workers
  uint64_t seed = 1;
  bool exact_devices = false;  // all workers are of one kind
  EarlyStopOptions early_stop;
  SkipStepOptions skip_step;
  std::vector<ParameterGroup> groups;  // a tensor is of the first that fits

  bool operator==(const TrainOptions&) const = default;
};

// What adapters of some matrices have in place of lora.rank and lora.alpha.
struct LoraPattern {
  std::string match;  // as a target
  std::optional<int64_t> rank;
  std::optional<double> alpha;

  bool operator==(const LoraPattern&) const = default;
};

// Low-rank adapters, which train in place of the model.
struct LoraOptions {
  // Of train, where a job with adapters does not say it.
  static constexpr double kLearningRate = 2e-4;

  int64_t rank = 0;     // 0: none, unless `from` says
  double alpha = 16;    // what they add is scaled by alpha / rank
  bool rslora = false;  // by alpha / sqrt(rank)
  std::vector<std::string> targets = {"all-linear"};
  std::vector<LoraPattern> patterns;  // a matrix is of the first that fits
  double dropout = 0;                 // in training, the part of x that they do not see
  std::string from;                   // a folder of PEFT's, which says all of that; empty: new ones
  Quantize quantize = Quantize::kNone;  // of the model's blocks

  bool enabled() const { return rank > 0 || !from.empty(); }
  bool operator==(const LoraOptions&) const = default;
};

enum class PreferenceLoss { kSigmoid, kHinge, kIpo, kRobust, kSimpo, kOrpo };
enum class Reference { kAuto, kPrecompute, kNone, kAdapterOff };

// What is learnt of pairs of replies, with Objective::kDpo.
struct PreferenceOptions {
  // Of train, where a job of pairs does not say it: those of TRL's own commands.
  static constexpr double kLearningRate = 5e-7;
  static constexpr double kLearningRateOfAdapters = 5e-6;

  PreferenceLoss loss = PreferenceLoss::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0.1;  // of robust
  double gamma = 0.5;            // of simpo
  double lambda = 0.1;           // of orpo
  double sft_weight = 0;
  Reference reference = Reference::kAuto;

  // Whether the loss compares with what the model said before step 1.
  bool has_reference() const {
    return loss != PreferenceLoss::kSimpo && loss != PreferenceLoss::kOrpo;
  }
  // Whether that is taken before step 1 and kept.
  bool precomputes() const { return has_reference() && reference != Reference::kAdapterOff; }
  bool operator==(const PreferenceOptions&) const = default;
};

// Which RDMA devices the verbs transport uses, and how. Hosts differ: flags of shoal-server and
// shoal-worker override the devices and the index on theirs.
struct RdmaOptions {
  std::vector<std::string> devices;  // "mlx5_0" or "mlx5_0:2"; empty: all usable ones
  int64_t gid_index = -1;            // -1: chosen
  int64_t mtu_bytes = 0;             // 0: the largest that both ports have
  int64_t max_rails = 4;             // devices and ports used at once
  int64_t traffic_class = 0;         // of IP packets on Ethernet: DSCP times 4
  int64_t service_level = 0;         // on InfiniBand
  bool trusted_network = false;      // verbs may be used where tensors are to be encrypted

  bool operator==(const RdmaOptions&) const = default;
};

// Where servers keep master weights, moments and sums of gradients: service.memory.
enum class PartitionMemory { kHost, kCuda };

enum class OnServerLoss { kAuto, kRestore, kFail };

// Of tensors between hosts. kAuto: where control is encrypted, by which keys travel.
enum class Encryption { kAuto, kOn, kOff };

// Where workers get what is frozen of a model with adapters from. Parsing settles kAuto.
enum class Frozen { kServers, kFiles, kAuto };

// The limit of service.push_slots: a client has one page for acknowledgements.
inline constexpr int64_t kMostPushSlots = 64;

struct ServiceOptions {
  DType wire_type = DType::kF32;  // resolved; key wire_type: auto|bf16|fp32 (auto follows compute)
  bool wire_type_auto = true;
  DType gradient_type = DType::kF32;  // how gradients travel: fp32 (default) or bf16
  Accumulate accumulate = Accumulate::kFloat;
  PartitionMemory memory = PartitionMemory::kHost;
  int64_t partition_bytes = 4 << 20;  // counted in fp32
  int64_t push_slots = 4;             // credits of one client at one server
  // In order of preference; transports that a machine lacks are skipped.
  std::vector<std::string> transports = {"shm", "verbs", "tcp"};
  RdmaOptions rdma;
  int64_t threads_per_server = 0;  // 0: the machine's cores divided by the local servers
  OnServerLoss on_server_loss = OnServerLoss::kAuto;
  bool verify_pushes = false;  // gradients travel with a hash
  Encryption encryption = Encryption::kAuto;
  int64_t replicas = 1;        // servers that have the state of a partition
  bool read_replicas = false;  // all of them serve its weights
  Frozen frozen = Frozen::kServers;

  bool operator==(const ServiceOptions&) const = default;
};

struct ClusterOptions {
  int64_t servers = 1;      // local or, with coordinator, to wait for (0: those registered)
  int64_t workers = 1;      // all stages of all groups
  bool local = true;        // start processes on this machine
  std::string coordinator;  // HOST:PORT of a running one
  std::string token_file;   // of it, for commands; empty: they are told otherwise
  double lease_seconds = 10;
  double start_timeout_seconds = 60;
  int64_t min_workers = 1;
  double grace_seconds = 25;
  double recovery_timeout_seconds = 1800;
  double coordinator_patience_seconds = 600;
  bool elastic = false;  // those that register become part of a job that trains
  int64_t min_servers = 1;
  PipelineOptions pipeline;

  bool operator==(const ClusterOptions&) const = default;
};

struct CheckpointOptions {
  std::string directory = "checkpoints";
  int64_t every_steps = 0;     // 0: never by steps
  double every_seconds = 600;  // since the last one began; 0: never by time
  int64_t keep = 3;
  bool export_huggingface = true;  // leave DIRECTORY/huggingface at the end
  ExportType export_type = ExportType::kFp32;
  bool export_each = false;  // leave huggingface in each checkpoint
  bool best = false;         // keep the one of the lowest validation loss

  bool operator==(const CheckpointOptions&) const = default;
};

struct QueueOptions {
  int64_t max_restarts = 3;  // after losses, in a row without a step

  bool operator==(const QueueOptions&) const = default;
};

struct LogOptions {
  bool tensorboard = false;  // event files beside the record
  std::string command;       // a shell's, run beside the run; empty: none

  bool operator==(const LogOptions&) const = default;
};

// Workers that compute nothing and wait as long as a device would take, with real messages: to try
// many devices and long sequences on a small machine. Weights and gradients on the wire are those
// of the job's (small) model, with made-up gradients. Reports say "emulated".
struct EmulateOptions {
  std::string shape;                 // named shape whose FLOPs set the pace; empty: no emulation
  double device_flops = 1.4e14;      // FLOP/s that a device of speed 1 reaches
  double time_scale = 1;             // real seconds per emulated second
  std::vector<double> speeds = {1};  // by worker, in turn

  bool enabled() const { return !shape.empty(); }
  bool operator==(const EmulateOptions&) const = default;
};

struct Job {
  std::string model;  // Hugging Face folder
  DataOptions data;
  AssignmentOptions plan;
  TrainOptions train;
  LoraOptions lora;
  PreferenceOptions preference;
  ServiceOptions service;
  ClusterOptions cluster;
  CheckpointOptions checkpoint;
  QueueOptions queue;
  LogOptions log;
  EmulateOptions emulate;

  // Whether the job goes on without what a lost server held since the newest checkpoint.
  bool RestoresOnServerLoss() const {
    return service.on_server_loss == OnServerLoss::kAuto
               ? checkpoint.every_steps > 0 || checkpoint.every_seconds > 0
               : service.on_server_loss == OnServerLoss::kRestore;
  }

  bool operator==(const Job&) const = default;
};

// Parses and validates. `file_name` is for messages ("job.yaml:7: ..."). `overrides` are "--set"
// values, "a.b=value"; an override beats a key of the file that it excludes. Keeps relative paths
// from the file; puts `override_directory` (the caller's working folder), unless empty, before
// relative paths from an override.
absl::StatusOr<Job> ParseJob(std::string_view yaml, const std::string& file_name,
                             const std::vector<std::string>& overrides = {},
                             const std::string& override_directory = "");

// What the machine that resolves a job offers.
struct MachineOffer {
  bool cpu_has_bf16 = false;
  int gpus = 0;  // usable by workers; all of them have bf16
};

// Makes relative paths (model, data.*, checkpoint.directory) absolute, from `base_directory`,
// the job file's folder. Resolves device auto if workers run on this machine and are not emulated;
// elsewhere each worker resolves its own. Resolves compute auto by what the device offers (this
// machine's, if workers choose theirs), and wire_type auto by compute. Idempotent.
void Resolve(Job& job, const std::string& base_directory, const MachineOffer& machine);

// Returns where a job that ParseJob takes gives `path`: "job.yaml:3" or "--set ...", `file_name`
// where it does not. For what is found wrong with a value after parsing.
std::string PlaceOf(const std::string& path, std::string_view yaml, const std::string& file_name,
                    const std::vector<std::string>& overrides = {});

// Returns the key that makes steps run as a schedule; the job has cluster.pipeline.enabled().
std::string_view ScheduleKey(const PipelineOptions& pipeline);
// Returns a key and its value with which steps cannot run as a schedule, if there is one.
std::optional<std::pair<std::string, std::string>> HindersSchedules(const Job& job);

// Call on a resolved job.
DType ComputeDType(const Job& job);

// Whether tensors are encrypted between hosts. FailedPrecondition if they are to be and cannot,
// since control, by which keys travel, is not.
absl::StatusOr<bool> EncryptsTensors(const ServiceOptions& service, bool control_is_encrypted);

// Returns the job as processes send it to each other (proto/job.proto).
proto::Job ToMessage(const Job& job);
// Parses a message with the checks of ParseJob; `name` is for messages ("the submitted job").
absl::StatusOr<Job> FromMessage(const proto::Job& message, const std::string& name);

// Returns YAML that ParseJob reads back to the same Job.
std::string ToYaml(const Job& job);

// A key whose values differ between two jobs, as YAML; empty where a job has none.
struct JobDifference {
  std::string key;  // "train.learning_rate"
  std::string first;
  std::string second;
};
// In the documentation's order.
std::vector<JobDifference> Differences(const Job& first, const Job& second);

// One key of the job file, for `--help` and docs/job-file.md.
struct JobKey {
  std::string path;           // "train.learning_rate"
  std::string type;           // "number from 0 to 1", "one of auto, fp32, bf16", ...
  std::string default_value;  // as it would be written; "required" if there is none
  std::string help;
};
// In the documentation's order.
std::vector<JobKey> JobKeys();
// The keys as a Markdown table, for docs/job-file.md.
std::string JobKeyTable();

// Whether a tensor of that name is of the group: `match` is a shell's pattern.
bool Matches(const ParameterGroup& group, const std::string& tensor);

// Whether warm-up and decay fit the steps.
absl::Status CheckSchedule(const TrainOptions& train);

// Puts the steps of `epochs` passes over so many samples in place of the epochs; a last minibatch
// that is not full is filled from the next pass. InvalidArgument where the schedule is longer.
absl::Status SettleEpochs(TrainOptions& train, int64_t samples);

// Puts what preference.reference auto is of a job with such steps and so many samples in its place:
// adapter-off for new adapters and at most one pass over the data, where a step runs as it needs.
void SettleReference(Job& job, int64_t samples);

// Learning rate of optimizer step `step` (the first is 1): linear warm-up to learning_rate, then
// the schedule. Those that end with the steps would reach minimum_learning_rate one step after the
// last; inverse-sqrt is learning_rate * sqrt(max(1, warmup_steps) / step), never below the minimum.
double LearningRateAt(const TrainOptions& train, int64_t step);

}  // namespace shoal::plan
