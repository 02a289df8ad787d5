#include "plan/job_keys.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/bytes.h"
#include "common/status.h"
#include "plan/job_values.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {
namespace {

// A field of the job, by reference: [](Job& job) -> auto& { return job.train.steps; }.
template <typename T>
using Field = T& (*)(Job&);

template <typename T>
const T& Get(Field<T> field, const Job& job) {
  return field(const_cast<Job&>(job));  // a Field only selects a member
}

template <typename T>
absl::Status Assign(absl::StatusOr<T> value, T& out) {
  if (value.ok()) {
    out = *std::move(value);
  }
  return value.status();
}

template <typename E>
using Choices = std::vector<std::pair<std::string, E>>;

template <typename E>
std::string ChoiceList(const Choices<E>& choices) {
  std::string text = "one of ";
  for (size_t i = 0; i < choices.size(); ++i) {
    text += (i == 0 ? "" : ", ") + choices[i].first;
  }
  return text;
}

template <typename E>
absl::StatusOr<E> ParseChoice(const YAML::Node& node, const Choices<E>& choices) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, ChoiceList(choices)));
  for (const auto& [name, value] : choices) {
    if (text == name) {
      return value;
    }
  }
  return InvalidArgument("is '{}', expected {}", text.substr(0, 60), ChoiceList(choices));
}

template <typename E>
std::string PrintChoice(E value, const Choices<E>& choices) {
  const auto found = std::find_if(choices.begin(), choices.end(),
                                  [&](const auto& choice) { return choice.second == value; });
  return found->first;
}

// Builds the table: each call adds a key, in the order of the documentation.
class TableBuilder {
 public:
  TableBuilder& Add(JobKeyBinding binding) {
    table_.push_back(std::move(binding));
    return *this;
  }

  TableBuilder& Integer(std::string path, Field<int64_t> field, IntegerRange range,
                        std::string help) {
    return Add({.key = {.path = std::move(path), .type = Describe(range), .help = std::move(help)},
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseInteger(node, range), field(job)); },
                .print = [=](const Job& job) { return std::to_string(Get(field, job)); }});
  }

  TableBuilder& Seed(std::string path, Field<uint64_t> field, std::string help) {
    return Add(
        {.key = {.path = std::move(path), .type = "integer of at least 0", .help = std::move(help)},
         .parse = [=](const YAML::Node& node,
                      Job& job) { return Assign(ParseSeed(node), field(job)); },
         .print = [=](const Job& job) { return std::to_string(Get(field, job)); }});
  }

  TableBuilder& Number(std::string path, Field<double> field, NumberRange range, std::string help) {
    return Add({.key = {.path = std::move(path), .type = Describe(range), .help = std::move(help)},
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseNumber(node, range), field(job)); },
                .print = [=](const Job& job) { return PrintNumber(Get(field, job)); }});
  }

  TableBuilder& Boolean(std::string path, Field<bool> field, std::string help) {
    return Add({.key = {.path = std::move(path), .type = "true or false", .help = std::move(help)},
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseBoolean(node), field(job)); },
                .print = [=](const Job& job) { return Get(field, job) ? "true" : "false"; }});
  }

  TableBuilder& Path(std::string path, Field<std::string> field, bool required, std::string help) {
    return Add({.key = {.path = std::move(path), .type = "path", .help = std::move(help)},
                .required = required,
                .is_path = true,
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseText(node), field(job)); },
                .print = [=](const Job& job) { return QuoteYaml(Get(field, job)); }});
  }

  template <typename E>
  TableBuilder& Choice(std::string path, std::type_identity_t<Field<E>> field, Choices<E> choices,
                       std::string help) {
    return Add(
        {.key = {.path = std::move(path), .type = ChoiceList(choices), .help = std::move(help)},
         .parse = [=](const YAML::Node& node,
                      Job& job) { return Assign(ParseChoice(node, choices), field(job)); },
         .print = [=](const Job& job) { return PrintChoice(Get<E>(field, job), choices); }});
  }

  std::vector<JobKeyBinding> Build() { return std::move(table_); }

 private:
  std::vector<JobKeyBinding> table_;
};

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxProcesses = 4096;
constexpr int64_t kMaxThreads = 1024;

// data.fields: our name -> the file's.
absl::Status ParseFields(const YAML::Node& node, Job& job) {
  static const std::vector<std::string> known = {"messages",   "role",      "content", "prompt",
                                                 "completion", "input_ids", "labels"};
  if (!node.IsMap()) {
    return InvalidArgument("is not a map like {{prompt: question, completion: answer}}");
  }
  for (const auto& item : node) {
    const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return InvalidArgument("has the unknown key '{}'; did you mean {}?", name.substr(0, 60),
                             Nearest(name, known));
    }
    absl::StatusOr<std::string> text = ParseText(item.second);
    if (!text.ok()) {
      return InvalidArgument("has {}, which {}", name, Message(text.status()));
    }
    job.data.fields[name] = *std::move(text);
  }
  return absl::OkStatus();
}

std::string PrintFields(const Job& job) {
  std::string text;
  for (const auto& [name, value] : job.data.fields) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", name, QuoteYaml(value));
  }
  return "{" + text + "}";
}

void AddData(TableBuilder& table) {
  table
      .Path(
          "data.train", [](Job & j) -> auto& { return j.data.train; }, true,
          "Training data: JSONL, or a token file made by `shoal data prepare`.")
      .Choice<Template>(
          "data.template", [](Job & j) -> auto& { return j.data.chat_template; },
          {{"plain", Template::kPlain},
           {"chatml", Template::kChatML},
           {"llama3", Template::kLlama3}},
          "How messages become text.")
      .Add({.key = {.path = "data.fields",
                    .type = "map from our field name (messages, role, content, prompt, completion, "
                            "input_ids, labels) to the file's",
                    .help = "For data with other field names, e.g. `{prompt: question, completion: "
                            "answer}`."},
            .parse = ParseFields,
            .print = PrintFields})
      .Integer(
          "data.max_sequence_tokens", [](Job & j) -> auto& { return j.data.max_sequence_tokens; },
          {2, kMaxTokens},
          "Longest sample, in tokens; `data.oversize` says what becomes of longer ones.")
      .Integer(
          "data.microbatch_tokens", [](Job & j) -> auto& { return j.data.microbatch_tokens; },
          {2, kMaxTokens}, "Most tokens packed together; at least `data.max_sequence_tokens`.")
      .Choice<OversizePolicy>(
          "data.oversize", [](Job & j) -> auto& { return j.data.oversize; },
          {{"error", OversizePolicy::kError},
           {"skip", OversizePolicy::kSkip},
           {"truncate", OversizePolicy::kTruncate}},
          "What to do with samples above `data.max_sequence_tokens`.")
      .Seed(
          "data.seed", [](Job & j) -> auto& { return j.data.seed; },
          "Order of the samples in each pass over the data.")
      .Boolean(
          "data.shuffle", [](Job & j) -> auto& { return j.data.shuffle; },
          "Whether each pass over the data has an order of its own; false: the file's order.");
}

void AddOptimizer(TableBuilder& table) {
  table
      .Number(
          "train.learning_rate", [](Job & j) -> auto& { return j.train.learning_rate; }, {},
          "Peak learning rate.")
      .Choice<LearningRateSchedule>(
          "train.schedule", [](Job & j) -> auto& { return j.train.schedule; },
          {{"constant", LearningRateSchedule::kConstant},
           {"linear", LearningRateSchedule::kLinear},
           {"cosine", LearningRateSchedule::kCosine}},
          "From the end of the warm-up to the last step.")
      .Integer(
          "train.warmup_steps", [](Job & j) -> auto& { return j.train.warmup_steps; }, {0},
          "Steps over which the learning rate rises linearly to its peak.")
      .Number(
          "train.minimum_learning_rate",
          [](Job & j) -> auto& { return j.train.minimum_learning_rate; }, {},
          "Where linear and cosine end.")
      .Number(
          "train.weight_decay", [](Job & j) -> auto& { return j.train.weight_decay; }, {},
          "Decoupled weight decay, of matrices alone.")
      .Number(
          "train.beta1", [](Job & j) -> auto& { return j.train.beta1; },
          {.high = 1, .high_open = true}, "AdamW: decay of the first moment.")
      .Number(
          "train.beta2", [](Job & j) -> auto& { return j.train.beta2; },
          {.high = 1, .high_open = true}, "AdamW: decay of the second moment.")
      .Number(
          "train.epsilon", [](Job & j) -> auto& { return j.train.epsilon; }, {.low_open = true},
          "AdamW: added to the root of the second moment.")
      .Number(
          "train.clip_norm", [](Job & j) -> auto& { return j.train.clip_norm; }, {},
          "Largest norm of the whole gradient; 0: no clipping.");
}

void AddTrain(TableBuilder& table) {
  table
      .Integer(
          "train.steps", [](Job & j) -> auto& { return j.train.steps; }, {1, 1'000'000'000},
          "Optimizer steps to run.")
      .Integer(
          "train.minibatch_samples", [](Job & j) -> auto& { return j.train.minibatch_samples; },
          {1, 10'000'000}, "Samples of one optimizer step, over all workers.")
      .Choice<ComputeType>(
          "train.compute", [](Job & j) -> auto& { return j.train.compute; },
          {{"auto", ComputeType::kAuto},
           {"fp32", ComputeType::kFp32},
           {"bf16", ComputeType::kBf16}},
          "Element type of the matrix products; auto: bf16 where the machine has it.");
  AddOptimizer(table);
  table
      .Choice<Residency>(
          "train.residency", [](Job & j) -> auto& { return j.train.residency; },
          {{"auto", Residency::kAuto}, {"layer", Residency::kLayer}, {"step", Residency::kStep}},
          "How long a worker keeps fetched weights: for one use, or for the whole step; auto: as "
          "memory allows.")
      .Choice<PushPolicy>(
          "train.push", [](Job & j) -> auto& { return j.train.push; },
          {{"auto", PushPolicy::kAuto},
           {"microbatch", PushPolicy::kMicrobatch},
           {"step", PushPolicy::kStep}},
          "When a worker pushes gradients: after each microbatch, or once a step; auto: as memory "
          "allows.")
      .Integer(
          "train.prefetch_units", [](Job & j) -> auto& { return j.train.prefetch_units; }, {0, 64},
          "Units of weights fetched ahead of their use.")
      .Integer(
          "train.threads_per_worker", [](Job & j) -> auto& { return j.train.threads_per_worker; },
          {0, kMaxThreads}, "0: the machine's cores divided by the local workers.")
      .Seed(
          "train.seed", [](Job & j) -> auto& { return j.train.seed; },
          "Seed of whatever training draws at random.");
}

absl::Status ParseWireType(const YAML::Node& node, Job& job) {
  static const Choices<int> choices = {{"auto", -1},
                                       {"bf16", static_cast<int>(DType::kBF16)},
                                       {"fp32", static_cast<int>(DType::kF32)}};
  int value = 0;
  SHOAL_RETURN_IF_ERROR(Assign(ParseChoice(node, choices), value));
  job.service.wire_type_auto = value < 0;
  job.service.wire_type = value < 0 ? DType::kF32 : static_cast<DType>(value);
  return absl::OkStatus();
}

absl::Status ParseTransports(const YAML::Node& node, Job& job) {
  static const std::vector<std::string> known = {"shm", "tcp"};
  SHOAL_ASSIGN_OR_RETURN(std::vector<std::string> names, ParseTextList(node));
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::find(known.begin(), known.end(), names[i]) == known.end()) {
      return InvalidArgument("has the unknown transport '{}'; did you mean {}?",
                             names[i].substr(0, 60), Nearest(names[i], known));
    }
    if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<ptrdiff_t>(i)) {
      return InvalidArgument("has '{}' twice", names[i]);
    }
  }
  if (names.empty()) {
    return InvalidArgument("is an empty list, expected some of shm, tcp");
  }
  job.service.transports = std::move(names);
  return absl::OkStatus();
}

std::string PrintTransports(const Job& job) {
  std::string text;
  for (const std::string& name : job.service.transports) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return "[" + text + "]";
}

void AddService(TableBuilder& table) {
  table
      .Add({.key = {.path = "service.wire_type",
                    .type = "one of auto, bf16, fp32",
                    .help =
                        "Element type in which weights travel; auto: that of the matrix products."},
            .parse = ParseWireType,
            .print = [](const Job& job) -> std::optional<std::string> {
              return job.service.wire_type_auto              ? "auto"
                     : job.service.wire_type == DType::kBF16 ? "bf16"
                                                             : "fp32";
            }})
      .Choice<DType>(
          "service.gradient_type", [](Job & j) -> auto& { return j.service.gradient_type; },
          {{"fp32", DType::kF32}, {"bf16", DType::kBF16}},
          "Element type in which gradients travel.")
      .Choice<Accumulate>(
          "service.accumulate", [](Job & j) -> auto& { return j.service.accumulate; },
          {{"float", Accumulate::kFloat}, {"exact", Accumulate::kExact}},
          "How servers add gradients; exact: in 64-bit fixed point, so that the sum does not "
          "depend on the order of arrival.")
      .Add({.key = {.path = "service.partition_bytes",
                    .type = "bytes from 1KiB to 1GiB",
                    .help = "Largest partition, counted in fp32."},
            .parse =
                [](const YAML::Node& node, Job& job) {
                  return Assign(ParseByteCount(node, {kKiB, kGiB}), job.service.partition_bytes);
                },
            .print = [](const Job& job) { return PrintBytes(job.service.partition_bytes); }})
      .Integer(
          "service.push_slots", [](Job & j) -> auto& { return j.service.push_slots; }, {1, 1024},
          "Pushes that one client may have in flight at one server.")
      .Add({.key = {.path = "service.transports",
                    .type = "list of shm, tcp",
                    .help = "In order of preference."},
            .parse = ParseTransports,
            .print = PrintTransports})
      .Integer(
          "service.threads_per_server",
          [](Job & j) -> auto& { return j.service.threads_per_server; }, {0, kMaxThreads},
          "0: the machine's cores divided by the local servers.");
}

// Counts are under cluster.local where processes are started here, else beside cluster.coordinator.
void AddCount(TableBuilder& table, const std::string& path, bool local, int64_t low,
              Field<int64_t> field, std::string help) {
  const IntegerRange range{low, kMaxProcesses};
  table.Add({.key = {.path = path, .type = Describe(range), .help = std::move(help)},
             .parse = [=](const YAML::Node& node,
                          Job& job) { return Assign(ParseInteger(node, range), field(job)); },
             .print =
                 [=](const Job& job) {
                   return job.cluster.local == local
                              ? std::optional(std::to_string(Get(field, job)))
                              : std::nullopt;
                 }});
}

void AddCluster(TableBuilder& table) {
  const Field<int64_t> servers = [](Job & j) -> auto& { return j.cluster.servers; };
  const Field<int64_t> workers = [](Job & j) -> auto& { return j.cluster.workers; };
  AddCount(table, "cluster.local.servers", true, 1, servers,
           "Start this many servers on this machine.");
  AddCount(table, "cluster.local.workers", true, 1, workers,
           "Start this many workers on this machine.");
  table.Add({.key = {.path = "cluster.coordinator",
                     .type = "HOST:PORT",
                     .help = "Submit to this running coordinator, instead of `cluster.local`."},
             .parse = [](const YAML::Node& node,
                         Job& job) { return Assign(ParseAddress(node), job.cluster.coordinator); },
             .print =
                 [](const Job& job) {
                   return job.cluster.coordinator.empty()
                              ? std::nullopt
                              : std::optional(QuoteYaml(job.cluster.coordinator));
                 }});
  AddCount(table, "cluster.servers", false, 0, servers,
           "With `cluster.coordinator`: servers to wait for; 0: those that are there.");
  AddCount(table, "cluster.workers", false, 0, workers,
           "With `cluster.coordinator`: workers to wait for; 0: those that are there.");
  table
      .Number(
          "cluster.lease_seconds", [](Job & j) -> auto& { return j.cluster.lease_seconds; },
          {0.1, 3600}, "A process that is silent for this long is lost.")
      .Number(
          "cluster.start_timeout_seconds",
          [](Job & j) -> auto& { return j.cluster.start_timeout_seconds; }, {0.1, 86400},
          "How long to wait for all processes to be there.");
}

void AddCheckpoint(TableBuilder& table) {
  table
      .Path(
          "checkpoint.directory", [](Job & j) -> auto& { return j.checkpoint.directory; }, false,
          "Where checkpoints are written.")
      .Integer(
          "checkpoint.every_steps", [](Job & j) -> auto& { return j.checkpoint.every_steps; },
          {0, 1'000'000'000}, "0: only at the end.")
      .Integer(
          "checkpoint.keep", [](Job & j) -> auto& { return j.checkpoint.keep; }, {1, 1'000'000},
          "Complete checkpoints kept; older ones are removed.")
      .Boolean(
          "checkpoint.export_huggingface",
          [](Job & j) -> auto& { return j.checkpoint.export_huggingface; },
          "Leave the model in Hugging Face form in DIRECTORY/huggingface at the end.");
}

std::vector<JobKeyBinding> BuildTable() {
  TableBuilder builder;
  builder.Path(
      "model", [](Job & j) -> auto& { return j.model; }, true,
      "Hugging Face folder of the model to train.");
  AddData(builder);
  AddTrain(builder);
  AddService(builder);
  AddCluster(builder);
  AddCheckpoint(builder);
  std::vector<JobKeyBinding> table = builder.Build();
  const Job defaults;
  for (JobKeyBinding& binding : table) {
    binding.key.default_value =
        binding.required ? "required" : binding.print(defaults).value_or("none");
  }
  return table;
}

}  // namespace

const std::vector<JobKeyBinding>& JobKeyBindings() {
  static const auto& table = *new std::vector<JobKeyBinding>(BuildTable());
  return table;
}

std::string QuoteYaml(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

std::vector<JobKey> JobKeys() {
  std::vector<JobKey> keys;
  for (const JobKeyBinding& binding : JobKeyBindings()) {
    keys.push_back(binding.key);
  }
  return keys;
}

std::string JobKeyTable() {
  std::string text = "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const JobKey& key : JobKeys()) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.path, key.type,
                        key.default_value == "required" || key.default_value == "none"
                            ? key.default_value
                            : "`" + key.default_value + "`",
                        key.help);
  }
  return text;
}

}  // namespace shoal::plan
