#include "core/base/bytes.h"
#include "core/job/job_key_builder.h"

namespace shoal::plan {
namespace {

constexpr int64_t kMaxProcesses = 4096;

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
  static const std::vector<std::string> known = {"shm", "verbs", "tcp"};
  SHOAL_ASSIGN_OR_RETURN(std::vector<std::string> names, ParseTextList(node));
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::find(known.begin(), known.end(), names[i]) == known.end()) {
      return InvalidArgument(
          "has the unknown transport '{}', expected some of shm, verbs (RDMA), tcp",
          names[i].substr(0, 60));
    }
    if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<ptrdiff_t>(i)) {
      return InvalidArgument("has '{}' twice", names[i]);
    }
  }
  if (names.empty()) {
    return InvalidArgument("is an empty list, expected some of shm, verbs, tcp");
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

}  // namespace

void AddServiceKeys(TableBuilder& table) {
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
      .Choice<PartitionMemory>(
          "service.memory", [](Job & j) -> auto& { return j.service.memory; },
          {{"host", PartitionMemory::kHost}, {"cuda", PartitionMemory::kCuda}},
          "Where servers keep master weights, moments and gradients, and compute on them; cuda: in "
          "the memory of a GPU.")
      .Add({.key = {.path = "service.partition_bytes",
                    .type = "bytes from 1KiB to 1GiB",
                    .help = "Largest partition, counted in fp32."},
            .parse =
                [](const YAML::Node& node, Job& job) {
                  return Assign(ParseByteCount(node, {kKiB, kGiB}), job.service.partition_bytes);
                },
            .print = [](const Job& job) { return PrintBytes(job.service.partition_bytes); }})
      .Integer(
          "service.push_slots", [](Job & j) -> auto& { return j.service.push_slots; },
          {1, kMostPushSlots}, "Pushes that one client may have in flight at one server.")
      .Add({.key = {.path = "service.transports",
                    .type = "list of shm, verbs, tcp",
                    .help = "In order of preference; verbs is RDMA."},
            .parse = ParseTransports,
            .print = PrintTransports})
      .Integer(
          "service.threads_per_server",
          [](Job & j) -> auto& { return j.service.threads_per_server; }, {0, kMaxThreads},
          "0: the machine's cores divided by the local servers.");
}

void AddClusterKeys(TableBuilder& table) {
  const Field<int64_t> servers = [](Job & j) -> auto& { return j.cluster.servers; };
  const Field<int64_t> workers = [](Job & j) -> auto& { return j.cluster.workers; };
  AddCount(table, "cluster.local.servers", true, 1, servers,
           "Start this many servers on this machine.");
  AddCount(table, "cluster.local.workers", true, 1, workers,
           "Start this many workers on this machine; unsaid: one for each of "
           "`cluster.pipeline.stages`.");
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

void AddCheckpointKeys(TableBuilder& table) {
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

}  // namespace shoal::plan
