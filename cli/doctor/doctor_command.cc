#include "cli/doctor/doctor_command.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "cli/doctor/gpu_checks.h"
#include "cli/doctor/gpu_survey.h"
#include "cli/doctor/rdma_checks.h"
#include "cli/plan/pipeline_report.h"
#include "cli/plan/simulation.h"
#include "cli/run/preflight.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/registry/job_transport.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

constexpr int64_t kComfortableMemory = 2 * kGiB;  // fits the quick start and the tests

std::string_view Name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kLimited:
      return "limited";
    case Health::kMissing:
      return "missing";
  }
  return "";
}

Check JudgeCpu(const Machine& m) {
  Check check{.feature = "training on the CPU", .required = true};
  check.detail = fmt::format("{} of {} cores, {}", UsableCores(m), m.cores_online,
                             m.avx512 ? "AVX-512" : (m.avx2 ? "AVX2" : "no AVX2"));
  if (!m.avx2 || !m.fma) {
    check.health = Health::kMissing;
    check.advice =
        "programs are built for x86-64-v3: use a CPU (or a virtual machine's CPU type) with AVX2 "
        "and FMA";
  }
  return check;
}

Check JudgeBf16(const Machine& m) {
  Check check{.feature = "bf16 on the CPU"};
  check.detail = m.amx_bf16 ? "AMX" : (m.avx512_bf16 ? "AVX512-BF16" : "no bf16 instructions");
  if (!m.cpu_has_bf16()) {
    check.health = Health::kLimited;
    check.advice =
        "compute: auto chooses fp32 here, about half the speed of bf16 where the CPU has it";
  }
  return check;
}

Check JudgeMemory(const Machine& m) {
  Check check{.feature = "memory", .required = true};
  if (!m.memory.ok()) {
    check.health = Health::kMissing;
    check.detail = Message(m.memory.status());
    check.advice = "no job that runs on this machine starts before that is mended";
    return check;
  }
  check.detail = fmt::format("{} available of {}", FormatBytes(m.memory->available),
                             FormatBytes(m.memory->total));
  if (m.memory->available < kComfortableMemory) {
    check.health = Health::kLimited;
    check.advice =
        "`shoal plan JOB.yaml` says what a job needs; free some memory for more than small models";
  }
  return check;
}

Check JudgeShm(const Machine& m) {
  Check check{.feature = "shm transport"};
  check.detail = fmt::format("memfd {}, /dev/shm {} free of {}", m.memfd ? "yes" : "no",
                             FormatBytes(m.shm_free_bytes), FormatBytes(m.shm_bytes));
  if (!m.memfd) {
    check.health = Health::kMissing;
    check.advice =
        "processes of one machine fall back to tcp; allow memfd_create (seccomp profile of the "
        "container)";
  }
  return check;
}

Check JudgePorts(const Machine& m) {
  Check check{.feature = "control plane and tcp transport", .required = true};
  check.detail =
      m.loopback_port ? "ports can be opened on 127.0.0.1" : "no port can be opened on 127.0.0.1";
  if (!m.loopback_port) {
    check.health = Health::kMissing;
    check.advice = "bring the loopback interface up (ip link set lo up)";
  }
  return check;
}

nlohmann::json MachineJson(const Machine& m) {
  return {{"event", "machine"},
          {"host", m.host},
          {"kernel", m.kernel},
          {"cpu_model", m.cpu_model},
          {"cores_online", m.cores_online},
          {"cores_available", m.cores_available},
          {"cores_usable", UsableCores(m)},
          {"instruction_sets",
           {{"avx2", m.avx2},
            {"fma", m.fma},
            {"avx512", m.avx512},
            {"avx512_bf16", m.avx512_bf16},
            {"amx_bf16", m.amx_bf16}}},
          {"memory_bytes", m.memory.ok() ? m.memory->total : 0},
          {"memory_available_bytes", m.memory.ok() ? m.memory->available : 0},
          {"shm_bytes", m.shm_bytes},
          {"shm_free_bytes", m.shm_free_bytes},
          {"memfd", m.memfd},
          {"loopback_port", m.loopback_port},
          {"gpus", m.gpus},
          {"nvidia_driver", m.nvidia_driver}};
}

nlohmann::json PortJson(const RdmaSurvey& survey, const std::string& device,
                        const transport::PortDescription& port) {
  const RdmaPort& facts = survey.ports.at(PortName(device, port.port));
  nlohmann::json gids = nlohmann::json::array();
  for (const transport::GidDescription& gid : port.gids) {
    const auto interface = facts.interfaces.find(gid.index);
    gids.push_back({{"index", gid.index},
                    {"gid", transport::FormatGid(gid.gid)},
                    {"type", gid.type == transport::GidType::kRoceV2   ? "RoCE v2"
                             : gid.type == transport::GidType::kRoceV1 ? "RoCE v1"
                                                                       : "InfiniBand"},
                    {"interface", interface == facts.interfaces.end() ? "" : interface->second}});
  }
  return {{"port", port.port},
          {"active", port.active},
          {"link_layer",
           port.link_layer == transport::LinkLayer::kEthernet ? "Ethernet" : "InfiniBand"},
          {"mtu_bytes", port.mtu_bytes},
          {"bits_per_second", port.bits_per_second},
          {"gids", gids},
          {"counters", facts.counters}};
}

nlohmann::json RdmaJson(const RdmaSurvey& survey, const RdmaNeeds& needs) {
  nlohmann::json devices = nlohmann::json::array();
  for (const transport::DeviceDescription& device : survey.census.devices) {
    nlohmann::json ports = nlohmann::json::array();
    for (const transport::PortDescription& port : device.ports) {
      ports.push_back(PortJson(survey, device.name, port));
    }
    const transport::DmaBufSupport dma_buf = survey.DmaBufOf(device.name);
    devices.push_back({{"name", device.name},
                       {"problem", device.problem},
                       {"numa_node", device.numa_node},
                       {"pci_path", device.pci_path},
                       {"windows", device.windows},
                       {"dma_buf", nullptr},
                       {"ports", ports}});
    if (dma_buf != transport::DmaBufSupport::kUnknown) {
      devices.back()["dma_buf"] = dma_buf == transport::DmaBufSupport::kYes;
    }
  }
  return {{"event", "rdma"},
          {"devices", devices},
          {"process_numa_node", needs.preferences.place.numa_node},
          {"kernel_devices", survey.kernel_devices},
          {"registered_bytes", needs.registered_bytes},
          {"locked_memory_bytes", survey.locked.limit_bytes},
          {"ipc_lock", survey.locked.capable},
          {"ipc_lock_given", survey.locked.capability_in_reach},
          {"peer_memory", survey.peer_memory},
          {"packet_filter", survey.packet_filter}};
}

struct JobNeeds {
  plan::Job job;
  plan::MemoryPlan memory;
};

// Returns nullopt without a job.
absl::StatusOr<std::optional<JobNeeds>> NeedsOf(const DoctorOptions& options) {
  if (options.job_file.empty()) {
    return std::nullopt;
  }
  SHOAL_ASSIGN_OR_RETURN(plan::Job job, ReadJob(options.job_file, {}));
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, CheckModel(job, options.job_file, {}));
  job.cluster.servers = std::max<int64_t>(1, job.cluster.servers);
  job.cluster.workers = std::max(job.cluster.pipeline.stages, job.cluster.workers);
  std::vector<plan::StageNeeds> stages;
  if (job.cluster.pipeline.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(const sim::Minibatches minibatches, DataMinibatches(job));
    auto planned = ReportPipeline(job, spec, minibatches);
    SHOAL_RETURN_IF_ERROR(AtKey(planned.status(), PipelineKey(job), options.job_file, {}));
    stages = std::move(planned->stages);
  }
  SHOAL_ASSIGN_OR_RETURN(plan::MemoryPlan plan,
                         CheckMemory(spec, job, /*available_bytes=*/0, stages));
  return JobNeeds{.job = std::move(job), .memory = std::move(plan)};
}

GpuNeeds GpuNeedsOf(const std::optional<JobNeeds>& job) {
  GpuNeeds needs;
  if (!job.has_value() || job->job.service.memory != plan::PartitionMemory::kCuda) {
    return needs;
  }
  for (const plan::ServerMemory& server : job->memory.servers) {
    needs.servers.push_back(server.gpu.total());
  }
  needs.local = job->job.cluster.local;
  needs.workers = job->job.train.device == plan::DeviceKind::kCuda ? job->job.cluster.workers : 0;
  return needs;
}

// Returns the devices that the job names and the bytes that its largest process registers.
RdmaNeeds RdmaNeedsOf(const std::optional<JobNeeds>& job, const DoctorOptions& options) {
  RdmaNeeds needs;
  plan::ServiceOptions service;
  if (job.has_value()) {
    needs.of_a_job = true;
    needs.registered_bytes = 0;
    for (const plan::WorkerMemory& worker : job->memory.stages) {
      needs.registered_bytes = std::max(
          needs.registered_bytes, worker.weights + worker.wire + worker.messages + worker.pushes);
    }
    for (const plan::ServerMemory& server : job->memory.servers) {
      needs.registered_bytes = std::max(needs.registered_bytes, server.weights + server.slots);
    }
    service = job->job.service;
  }
  const transport::VerbsOptions verbs = transport::MakeVerbsOptions(service.rdma, options.rdma);
  needs.preferences = {
      .devices = verbs.devices,
      .gid_index = verbs.gid_index,
      .max_rails = verbs.max_rails,
      .place = transport::FindServedLocation({}, options.root + transport::kSysfs)};
  return needs;
}

void PrintChecks(const Machine& machine, const std::vector<Check>& checks, Streams& streams) {
  const Terminal& terminal = streams.out_terminal;
  streams.out << fmt::format("{}, {}, {}\n\n", machine.host, machine.kernel,
                             machine.cpu_model.empty() ? "unknown CPU" : machine.cpu_model);
  Table table({{"feature"}, {"state"}, {"found"}});
  for (const Check& check : checks) {
    table.Add({check.feature, std::string(Name(check.health)), check.detail});
  }
  streams.out << table.Render(terminal);
  bool heading = false;
  for (const Check& check : checks) {
    if (check.advice.empty()) {
      continue;
    }
    if (!heading) {
      streams.out << "\n" << Paint(terminal, Colour::kBold, "What to do, or to know") << "\n";
      heading = true;
    }
    const Colour colour =
        check.required && check.health == Health::kMissing ? Colour::kRed : Colour::kYellow;
    streams.out << "- " << Paint(terminal, colour, check.feature) << ": " << check.advice << "\n";
  }
}

}  // namespace

std::vector<Check> Judge(const Machine& machine) {
  return {JudgeCpu(machine), JudgeBf16(machine), JudgeMemory(machine), JudgePorts(machine),
          JudgeShm(machine)};
}

absl::StatusOr<ExitCode> RunDoctor(const DoctorOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const std::optional<JobNeeds> job, NeedsOf(options));
  const RdmaNeeds needs = RdmaNeedsOf(job, options);
  const GpuNeeds gpu_needs = GpuNeedsOf(job);
  const Machine machine = ExamineMachine(options.root);
  RdmaSurvey rdma = ExamineRdma(options.root, transport::TakeRdmaCensus());
  rdma.gpus = !machine.gpus.empty();
  rdma.kernel = machine.kernel;
  GpuSurvey gpus = ExamineGpus();
  gpus.devices = !machine.gpus.empty();
  std::vector<Check> checks = Judge(machine);
  std::ranges::move(JudgeGpus(gpus, gpu_needs), std::back_inserter(checks));
  std::ranges::move(JudgeRdma(rdma, needs), std::back_inserter(checks));
  bool usable = true;
  for (const Check& check : checks) {
    usable = usable && !(check.required && check.health == Health::kMissing);
  }
  if (options.json) {
    PrintJson(streams.out, MachineJson(machine));
    PrintJson(streams.out, GpusJson(gpus, gpu_needs));
    PrintJson(streams.out, RdmaJson(rdma, needs));
    for (const Check& check : checks) {
      PrintJson(streams.out, {{"event", "check"},
                              {"feature", check.feature},
                              {"state", Name(check.health)},
                              {"required", check.required},
                              {"found", check.detail},
                              {"advice", check.advice}});
    }
  } else {
    PrintChecks(machine, checks, streams);
  }
  return usable ? ExitCode::kDone : ExitCode::kFailure;
}

void AddDoctor(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      AddCommand(app, "doctor", "What this machine offers, and what is missing for which feature",
                 "shoal doctor\n"
                 "  shoal doctor job.yaml --rdma-device mlx5_0");
  command->add_option(
      "job", options->job_file,
      "Job file: judges RDMA by what its processes register and the devices it names, "
      "and GPUs by what its servers take of them");
  transport::AddRdmaFlags(*command, options->rdma);
  command->add_flag("--json", options->json, "JSON lines instead of a table");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunDoctor(*options, streams); };
  });
}

}  // namespace shoal::cli
