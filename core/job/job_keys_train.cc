#include "core/base/nearest.h"
#include "core/job/job_key_builder.h"
#include "core/job/template_names.h"

namespace shoal::plan {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

// data.fields: our name -> the file's.
absl::Status ParseFields(const YAML::Node& node, Job& job) {
  static const std::vector<std::string> known = {"messages",  "prompt", "completion",
                                                 "input_ids", "labels", "answer"};
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

template <typename E, size_t N>
Choices<E> ChoicesOf(const std::array<std::pair<std::string_view, E>, N>& names) {
  return Choices<E>(names.begin(), names.end());
}

}  // namespace

void AddPlanKeys(TableBuilder& table) {
  table
      .Choice<Assignment>(
          "plan.assignment", [](Job & j) -> auto& { return j.plan.assignment; },
          ChoicesOf(kAssignmentNames),
          "How samples are given to workers; auto: lb-mini, or lb-micro with "
          "`train.synchronization: "
          "layer`.")
      .Choice<CostSource>(
          "plan.cost", [](Job & j) -> auto& { return j.plan.cost; }, ChoicesOf(kCostSourceNames),
          "What the balance is by: the model's FLOPs, tokens, or a fit to this run's measured "
          "microbatches.");
}

void AddDataKeys(TableBuilder& table) {
  table
      .Path(
          "data.train", [](Job & j) -> auto& { return j.data.train; }, true,
          "Training data: JSONL, or a token file made by `shoal data prepare`.")
      .Choice<Template>(
          "data.template", [](Job & j) -> auto& { return j.data.chat_template; },
          ChoicesOf(kTemplateNames), "How messages become text.")
      .Add({.key = {.path = "data.fields",
                    .type = "map from our field name (messages, prompt, completion, "
                            "input_ids, labels, answer) to the file's",
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

void AddTrainKeys(TableBuilder& table) {
  table
      .Integer(
          "train.steps", [](Job & j) -> auto& { return j.train.steps; }, {1, 1'000'000'000},
          "Optimizer steps to run.")
      .Integer(
          "train.minibatch_samples", [](Job & j) -> auto& { return j.train.minibatch_samples; },
          {1, 10'000'000}, "Samples of one optimizer step, over all workers.")
      .Choice<DeviceKind>(
          "train.device", [](Job & j) -> auto& { return j.train.device; },
          ChoicesOf(kDeviceKindNames),
          "What workers compute on; auto: a GPU where the worker's machine has one that can be "
          "used, else the CPU.")
      .Choice<ComputeType>(
          "train.compute", [](Job & j) -> auto& { return j.train.compute; },
          {{"auto", ComputeType::kAuto},
           {"fp32", ComputeType::kFp32},
           {"bf16", ComputeType::kBf16}},
          "Element type of the matrix products; auto: bf16 on GPUs, and on CPUs "
          "that have it.")
      .Choice<Synchronization>(
          "train.synchronization", [](Job & j) -> auto& { return j.train.synchronization; },
          ChoicesOf(kSynchronizationNames),
          "When workers wait for each other: once a step, or (the baseline: collective sharded "
          "training) at every get and push of a layer.");
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
          "allows, and after each microbatch where service.accumulate is exact.")
      .Integer(
          "train.prefetch_units", [](Job & j) -> auto& { return j.train.prefetch_units; }, {0, 64},
          "Units of weights fetched ahead of their use.")
      .Integer(
          "train.threads_per_worker", [](Job & j) -> auto& { return j.train.threads_per_worker; },
          {0, kMaxThreads}, "0: the machine's cores divided by the local workers.")
      .Seed(
          "train.seed", [](Job & j) -> auto& { return j.train.seed; },
          "Nothing is drawn by it yet: the order of samples is `data.seed`'s.");
}

}  // namespace shoal::plan
