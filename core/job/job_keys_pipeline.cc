// cluster.pipeline: layers split over stages.
#include "core/job/job_key_builder.h"

namespace shoal::plan {
namespace {

constexpr int64_t kMaxStages = 256;
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMaxMemory = int64_t{1} << 50;

const Choices<double>& OffloadNames() {
  static const auto& names = *new Choices<double>{{"auto", OffloadedChunks::kAuto},
                                                  {"none", 0.0},
                                                  {"half", OffloadedChunks::kHalf},
                                                  {"full", OffloadedChunks::kFull}};
  return names;
}

absl::Status ParseOffload(const YAML::Node& node, Job& job) {
  if (const auto named = ParseChoice(node, OffloadNames()); named.ok()) {
    job.cluster.pipeline.offload.value = *named;
    return absl::OkStatus();
  }
  const auto chunks = ParseNumber(node, {.low = 0, .high = kMaxChunks});
  if (!chunks.ok()) {
    SHOAL_ASSIGN_OR_RETURN(const std::string text,
                           ParseScalar(node, "auto, none, half, full or a number of chunks"));
    return InvalidArgument("is '{}', expected auto, none, half, full or a number of chunks",
                           text.substr(0, 60));
  }
  job.cluster.pipeline.offload.value = *chunks;
  return absl::OkStatus();
}

std::string PrintOffload(const Job& job) {
  const double value = job.cluster.pipeline.offload.value;
  return value > 0 ? PrintNumber(value) : PrintChoice(value, OffloadNames());
}

absl::Status ParseCopyRate(const YAML::Node& node, Job& job) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, "a rate like 3.1GB/s, or 0"));
  if (text == "0") {
    job.cluster.pipeline.copy_rate = 0;
    return absl::OkStatus();
  }
  const absl::StatusOr<double> rate = ParseRate(text);
  if (!rate.ok()) {
    return InvalidArgument("is '{}', expected a rate like 3.1GB/s, or 0", text.substr(0, 60));
  }
  job.cluster.pipeline.copy_rate = *rate;
  return absl::OkStatus();
}

std::string PrintCopyRate(const Job& job) {
  const double rate = job.cluster.pipeline.copy_rate;
  return rate > 0 ? PrintNumber(rate) + "B/s" : "0";
}

JobKeyBinding Memory(std::string path, Field<int64_t> field, std::string help) {
  return {.key = {.path = std::move(path), .type = "bytes", .help = std::move(help)},
          .parse =
              [=](const YAML::Node& node, Job& job) {
                return Assign(ParseByteCount(node, {0, kMaxMemory}), field(job));
              },
          .print =
              [=](const Job& job) {
                const int64_t bytes = Get(field, job);
                return bytes == 0 ? "0" : PrintBytes(bytes);
              }};
}

void AddPace(TableBuilder& table) {
  table
      .Boolean(
          "cluster.pipeline.duplex",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.duplex; },
          "Whether offloads and reloads of a device run beside each other, or one after the other.")
      .Boolean(
          "cluster.pipeline.paired",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.paired; },
          "Whether stages 2j and 2j + 1 share a PCIe switch: then they take turns to copy.")
      .Number(
          "cluster.pipeline.pace.forward_flops",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.forward_flops; }, {},
          "FLOP/s that a stage reaches in the matrices of blocks, in forward. 0, here and below: "
          "measured when the job is submitted.")
      .Number(
          "cluster.pipeline.pace.backward_input_flops",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.backward_input_flops; }, {},
          "In the backward for the input.")
      .Number(
          "cluster.pipeline.pace.backward_weights_flops",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.backward_weights_flops; }, {},
          "In the backward for the weights.")
      .Number(
          "cluster.pipeline.pace.attention_forward_flops",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.attention_forward_flops; }, {},
          "FLOP/s in attention, in forward. 0 with all rates of matrices and copies given, here "
          "and "
          "in the next two: as in matrices.")
      .Number(
          "cluster.pipeline.pace.attention_backward_flops",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.attention_backward_flops; }, {},
          "In the backward.")
      .Number(
          "cluster.pipeline.pace.head_flops",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.head_flops; }, {},
          "FLOP/s of the head's loss and gradients.")
      .Number(
          "cluster.pipeline.pace.elementwise_bytes_per_second",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.elementwise_bytes_per_second; }, {},
          "In norms and activation functions that are made again.")
      .Number(
          "cluster.pipeline.pace.offload_bytes_per_second",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.offload_bytes_per_second; }, {},
          "From device to host memory.")
      .Number(
          "cluster.pipeline.pace.reload_bytes_per_second",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.reload_bytes_per_second; }, {},
          "From host to device memory.")
      .Number(
          "cluster.pipeline.pace.message_bytes_per_second",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.message_bytes_per_second; }, {},
          "From stage to stage; 0: not counted.")
      .Number(
          "cluster.pipeline.pace.message_latency_seconds",
          [](Job & j) -> auto& { return j.cluster.pipeline.pace.message_latency_seconds; }, {},
          "Of a message from stage to stage, besides; 0: not counted.");
}

}  // namespace

void AddPipelineKeys(TableBuilder& table) {
  table
      .Integer(
          "cluster.pipeline.stages", [](Job & j) -> auto& { return j.cluster.pipeline.stages; },
          {1, kMaxStages},
          "Workers that a copy of the model's layers is split over; so many workers in turn are a "
          "group.")
      .Integer(
          "cluster.pipeline.chunks", [](Job & j) -> auto& { return j.cluster.pipeline.chunks; },
          {0, kMaxChunks}, "Runs of layers that each stage holds; 0: chosen.")
      .Add(
          {.key = {.path = "cluster.pipeline.schedule",
                   .type = "auto, or one of GPipe, 1F1B, interleaved, GIS, GIS-H, GIS(g), PO, "
                           "ZB-H1, ZB-H2, ZB-V, V-Half, V-Min, accumulation",
                   .help = "In which order stages run their microbatches; auto: the fastest that "
                           "fits into memory."},
           .parse = [](const YAML::Node& node,
                       Job& job) { return Assign(ParseText(node), job.cluster.pipeline.schedule); },
           .print = [](const Job& job) { return QuoteYaml(job.cluster.pipeline.schedule); }})
      .Add({.key = {.path = "cluster.pipeline.offload",
                    .type = "auto, none, half, full or a number",
                    .help = "Chunks of each stage whose activations wait for their backward in "
                            "host memory; auto: as many as memory asks for."},
            .parse = ParseOffload,
            .print = PrintOffload})
      .Choice<std::optional<Recompute>>(
          "cluster.pipeline.recompute",
          [](Job & j) -> auto& { return j.cluster.pipeline.recompute; },
          {{"auto", std::nullopt},
           {"none", Recompute::kNone},
           {"light", Recompute::kLight},
           {"full", Recompute::kFull}},
          "What the backward makes again instead of keeping it: outputs of norms and activation "
          "functions (light), or all of a block but its input (full); auto: none, if that fits.")
      .Add(Memory(
          "cluster.pipeline.device_memory",
          [](Job & j) -> auto& { return j.cluster.pipeline.device_memory; },
          "What a stage's activations may take of its device's memory; 0: what there is (of a GPU, "
          "what the job's other needs leave; on a CPU, no bound)."))
      .Add(Memory(
          "cluster.pipeline.host_memory",
          [](Job & j) -> auto& { return j.cluster.pipeline.host_memory; },
          "What the offloaded activations of a stage may take of host memory; 0: what there is."))
      .Add({.key = {.path = "cluster.pipeline.copy_rate",
                    .type = "rate like 3.1GB/s, or 0",
                    .help = "On a CPU, the bus between device and host memory that is emulated, "
                            "each way; 0: as fast as memory."},
            .parse = ParseCopyRate,
            .print = PrintCopyRate});
  AddPace(table);
}

}  // namespace shoal::plan
