#include "core/transport/bench/message_peers.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "core/base/status.h"
#include "core/transport/bench/run_program.h"
#include "nlohmann/json.hpp"

namespace shoal::transport {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

absl::StatusOr<std::string> FindPeerProgram(const PeerOptions& options, const std::string& name,
                                            const std::string& package) {
  std::string path = options.program_folder + "/" + name;
  if (access(path.c_str(), X_OK) != 0) {
    return NotFound("{} is not there: it is built where CMake finds {}; install it and build again",
                    path, package);
  }
  return path;
}

class MessagePeer : public Peer {
 public:
  bool Covers(std::string_view transport) const override {
    return transport == "shm" || transport == "tcp";
  }
  bool Covers(BenchOperation operation) const override { return operation == BenchOperation::kGet; }

 protected:
  static std::vector<std::string> LoadArguments(const PeerLoad& load) {
    return {fmt::format("{}", load.bytes),
            fmt::format("{:.6f}", absl::ToDoubleSeconds(load.run_time)),
            fmt::format("{}", load.memory_bytes)};
  }
};

class Ucx final : public MessagePeer {
 public:
  explicit Ucx(std::string program) : program_(std::move(program)) {}
  std::string_view name() const override { return "ucx"; }
  absl::StatusOr<PeerFigures> Measure(const PeerLoad& load) override {
    std::vector<std::string> arguments = {program_};
    std::ranges::copy(LoadArguments(load), std::back_inserter(arguments));
    // Over the loopback device, as our tcp and Open MPI's.
    const std::map<std::string, std::string> environment =
        load.transport == "shm"
            ? std::map<std::string, std::string>{{"UCX_TLS", "posix"}}
            : std::map<std::string, std::string>{{"UCX_TLS", "tcp"}, {"UCX_NET_DEVICES", "lo"}};
    SHOAL_ASSIGN_OR_RETURN(const std::string output, RunProgram(arguments, kPatience, environment));
    return ParsePeerJson(output);
  }

 private:
  const std::string program_;
};

class OpenMpi final : public MessagePeer {
 public:
  explicit OpenMpi(std::string program) : program_(std::move(program)) {}
  std::string_view name() const override { return "openmpi"; }
  absl::StatusOr<PeerFigures> Measure(const PeerLoad& load) override {
    // ob1 and not UCX beneath it. Shared memory by copy-in, copy-out, which is its faster way.
    std::vector<std::string> arguments = {
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml",
        "ob1"};
    const std::vector<std::string> layer =
        load.transport == "shm"
            ? std::vector<std::string>{"--mca",
                                       "btl",
                                       "vader,self",
                                       "--mca",
                                       "btl_vader_single_copy_mechanism",
                                       "none"}
            : std::vector<std::string>{"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
                                       "lo"};
    std::ranges::copy(layer, std::back_inserter(arguments));
    arguments.insert(arguments.end(), {"-np", "2", program_});
    std::ranges::copy(LoadArguments(load), std::back_inserter(arguments));
    SHOAL_ASSIGN_OR_RETURN(const std::string output, RunProgram(arguments, kPatience));
    return ParsePeerJson(output);
  }

 private:
  const std::string program_;
};

}  // namespace

absl::StatusOr<PeerFigures> ParsePeerJson(const std::string& output) {
  // Launchers print warnings around it.
  const size_t begin = output.find('{');
  const size_t end = output.find('}', begin);
  const auto json =
      begin == std::string::npos || end == std::string::npos
          ? nlohmann::json()
          : nlohmann::json::parse(output.substr(begin, end + 1 - begin), nullptr, false);
  PeerFigures figures;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      const double figure = value.is_number() ? value.get<double>() : 0;
      if (figure <= 0) {
        continue;
      }
      if (key.find("bytes_per_second") != std::string::npos) {
        figures.bytes_per_second = std::max(figures.bytes_per_second, figure);
      } else if (key.find("latency_seconds") != std::string::npos) {
        figures.latency_seconds =
            figures.latency_seconds == 0 ? figure : std::min(figures.latency_seconds, figure);
      }
    }
  }
  if (figures.bytes_per_second <= 0 || figures.latency_seconds <= 0) {
    return Internal("the peer printed no figures: {}", output.substr(0, 200));
  }
  return figures;
}

absl::StatusOr<std::unique_ptr<Peer>> MakeUcx(const PeerOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(std::string program,
                         FindPeerProgram(options, "shoal-bench-ucx", "UCX (libucx-dev)"));
  return std::make_unique<Ucx>(std::move(program));
}

absl::StatusOr<std::unique_ptr<Peer>> MakeOpenMpi(const PeerOptions& options) {
  if (!ProgramExists("mpirun")) {
    return NotFound("mpirun is not on PATH: install Open MPI (apt-get install openmpi-bin)");
  }
  SHOAL_ASSIGN_OR_RETURN(std::string program,
                         FindPeerProgram(options, "shoal-bench-mpi", "MPI (libopenmpi-dev)"));
  return std::make_unique<OpenMpi>(std::move(program));
}

}  // namespace shoal::transport
