#include "client/cli/doctor_verb.h"

#include <memory>

#include "CLI/CLI.hpp"
#include "common/bytes.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

constexpr int64_t kComfortableMemory = 2 * kGiB;   // the quick start and the tests fit
constexpr int64_t kComfortableMemlock = 1 * kGiB;  // registered memory of a small run

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

std::string MemlockText(int64_t bytes) { return bytes < 0 ? "unlimited" : FormatBytes(bytes); }

Finding JudgeCpu(const Machine& m) {
  Finding finding{.feature = "training on the CPU", .required = true};
  finding.detail = fmt::format("{} of {} cores, {}", UsableCores(m), m.cores_online,
                               m.avx512 ? "AVX-512" : (m.avx2 ? "AVX2" : "no AVX2"));
  if (!m.avx2 || !m.fma) {
    finding.health = Health::kMissing;
    finding.advice =
        "programs are built for x86-64-v3: use a CPU (or a virtual machine's CPU type) with AVX2 "
        "and FMA";
  }
  return finding;
}

Finding JudgeBf16(const Machine& m) {
  Finding finding{.feature = "bf16 on the CPU"};
  finding.detail = m.amx_bf16 ? "AMX" : (m.avx512_bf16 ? "AVX512-BF16" : "no bf16 instructions");
  if (!m.cpu_has_bf16()) {
    finding.health = Health::kLimited;
    finding.advice =
        "compute: auto chooses fp32 here, about half the speed of bf16 where the CPU has it";
  }
  return finding;
}

Finding JudgeMemory(const Machine& m) {
  Finding finding{.feature = "memory", .required = true};
  finding.detail = fmt::format("{} available of {}", FormatBytes(m.memory_available_bytes),
                               FormatBytes(m.memory_bytes));
  if (m.memory_available_bytes < kComfortableMemory) {
    finding.health = Health::kLimited;
    finding.advice =
        "`shoal plan JOB.yaml` says what a job needs; free some memory for more than small models";
  }
  return finding;
}

Finding JudgeShm(const Machine& m) {
  Finding finding{.feature = "shm transport"};
  finding.detail = fmt::format("memfd {}, /dev/shm {} free of {}", m.memfd ? "yes" : "no",
                               FormatBytes(m.shm_free_bytes), FormatBytes(m.shm_bytes));
  if (!m.memfd) {
    finding.health = Health::kMissing;
    finding.advice =
        "processes of one machine fall back to tcp; allow memfd_create (seccomp profile of the "
        "container)";
  }
  return finding;
}

Finding JudgePorts(const Machine& m) {
  Finding finding{.feature = "control plane and tcp transport", .required = true};
  finding.detail =
      m.loopback_port ? "ports can be opened on 127.0.0.1" : "no port can be opened on 127.0.0.1";
  if (!m.loopback_port) {
    finding.health = Health::kMissing;
    finding.advice = "bring the loopback interface up (ip link set lo up)";
  }
  return finding;
}

Finding JudgeGpu(const Machine& m) {
  Finding finding{.feature = "GPUs"};
  if (m.gpus.empty()) {
    finding.health = Health::kMissing;
    finding.detail = "none";
    finding.advice = "training runs on the CPU";
    return finding;
  }
  finding.detail = fmt::format("{} x {}, driver {}", m.gpus.size(), m.gpus.front(),
                               m.nvidia_driver.empty() ? "unknown" : m.nvidia_driver);
  finding.health = Health::kLimited;
  finding.advice = "this build trains on the CPU; GPUs are shown for information";
  return finding;
}

Finding JudgeRdma(const Machine& m) {
  Finding finding{.feature = "RDMA"};
  if (m.rdma_devices.empty()) {
    finding.health = Health::kMissing;
    finding.detail = "no device in /sys/class/infiniband";
    finding.advice = "machines talk over tcp";
    return finding;
  }
  for (const RdmaDevice& device : m.rdma_devices) {
    finding.detail += fmt::format("{}{} ({}, {})", finding.detail.empty() ? "" : ", ", device.name,
                                  device.link_layer, device.state);
  }
  finding.health = Health::kLimited;
  finding.advice = "this build has no RDMA transport; devices are shown for information";
  if (!m.rdma_core) {
    finding.advice +=
        "; /dev/infiniband is missing: load ib_uverbs or pass the device into the container";
  }
  return finding;
}

Finding JudgeMemlock(const Machine& m) {
  Finding finding{.feature = "locked memory (for RDMA)"};
  finding.detail = MemlockText(m.memlock_bytes);
  if (m.memlock_bytes >= 0 && m.memlock_bytes < kComfortableMemlock) {
    finding.health = Health::kLimited;
    finding.advice = "ulimit -l unlimited, or the IPC_LOCK capability; shm and tcp do not need it";
  }
  return finding;
}

nlohmann::json MachineJson(const Machine& m) {
  nlohmann::json rdma = nlohmann::json::array();
  for (const RdmaDevice& device : m.rdma_devices) {
    rdma.push_back(
        {{"name", device.name}, {"link_layer", device.link_layer}, {"state", device.state}});
  }
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
          {"memory_bytes", m.memory_bytes},
          {"memory_available_bytes", m.memory_available_bytes},
          {"memlock_bytes", m.memlock_bytes},
          {"shm_bytes", m.shm_bytes},
          {"shm_free_bytes", m.shm_free_bytes},
          {"memfd", m.memfd},
          {"loopback_port", m.loopback_port},
          {"gpus", m.gpus},
          {"nvidia_driver", m.nvidia_driver},
          {"rdma_devices", rdma}};
}

void PrintFindings(const Machine& machine, const std::vector<Finding>& findings, Streams& streams) {
  const Terminal& terminal = streams.out_terminal;
  streams.out << fmt::format("{}, {}, {}\n\n", machine.host, machine.kernel,
                             machine.cpu_model.empty() ? "unknown CPU" : machine.cpu_model);
  Table table({{"feature"}, {"state"}, {"found"}});
  for (const Finding& finding : findings) {
    table.Add({finding.feature, std::string(Name(finding.health)), finding.detail});
  }
  streams.out << table.Render(terminal);
  bool heading = false;
  for (const Finding& finding : findings) {
    if (finding.advice.empty()) {
      continue;
    }
    if (!heading) {
      streams.out << "\n" << Paint(terminal, Colour::kBold, "What to do, or to know") << "\n";
      heading = true;
    }
    const Colour colour =
        finding.required && finding.health == Health::kMissing ? Colour::kRed : Colour::kYellow;
    streams.out << "- " << Paint(terminal, colour, finding.feature) << ": " << finding.advice
                << "\n";
  }
}

}  // namespace

std::vector<Finding> Judge(const Machine& machine) {
  return {JudgeCpu(machine), JudgeBf16(machine), JudgeMemory(machine), JudgePorts(machine),
          JudgeShm(machine), JudgeGpu(machine),  JudgeRdma(machine),   JudgeMemlock(machine)};
}

absl::StatusOr<ExitCode> RunDoctor(const DoctorOptions& options, Streams& streams) {
  const Machine machine = ExamineMachine(options.root);
  const std::vector<Finding> findings = Judge(machine);
  bool usable = true;
  for (const Finding& finding : findings) {
    usable = usable && !(finding.required && finding.health == Health::kMissing);
  }
  if (options.json) {
    PrintJson(streams.out, MachineJson(machine));
    for (const Finding& finding : findings) {
      PrintJson(streams.out, {{"event", "finding"},
                              {"feature", finding.feature},
                              {"state", Name(finding.health)},
                              {"required", finding.required},
                              {"found", finding.detail},
                              {"advice", finding.advice}});
    }
  } else {
    PrintFindings(machine, findings, streams);
  }
  return usable ? ExitCode::kDone : ExitCode::kFailure;
}

void AddDoctor(CLI::App& app, VerbAction& action) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* verb =
      AddVerb(app, "doctor", "What this machine offers, and what is missing for which feature",
              "shoal doctor");
  verb->add_flag("--json", options->json, "JSON lines instead of a table");
  verb->callback([options, &action] {
    action = [options](Streams& streams) { return RunDoctor(*options, streams); };
  });
}

}  // namespace shoal::cli
