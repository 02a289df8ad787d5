#include "core/transport/bench/perftest.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/bench/program_pair.h"
#include "core/transport/verbs/device_probe.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {
namespace {

constexpr int64_t kFewestIterations = 10;  // perftest refuses fewer than five
constexpr int64_t kMostIterations = 20000;
constexpr int64_t kAcknowledgementBytes = 64;
constexpr int64_t kAcknowledgementIterations = 2000;

// The columns of the first row of figures.
absl::StatusOr<std::vector<double>> FirstRow(const std::string& output, size_t columns) {
  bool beneath_header = false;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
    if (!words.empty() && words[0] == "#bytes") {
      beneath_header = true;
    } else if (beneath_header && words.size() >= columns) {
      std::vector<double> figures(words.size());
      for (size_t i = 0; i < words.size(); ++i) {
        if (!absl::SimpleAtod(words[i], &figures[i])) {
          return Internal("perftest printed '{}' where a figure was expected", words[i]);
        }
      }
      return figures;
    }
  }
  return Internal("perftest printed no figures");
}

class Perftest final : public Peer {
 public:
  explicit Perftest(Rail rail) : rail_(std::move(rail)) {}

  std::string_view name() const override { return "perftest"; }
  bool Covers(std::string_view transport) const override { return transport == "verbs"; }
  bool Covers(BenchOperation /*operation*/) const override { return true; }

  absl::StatusOr<PeerFigures> Measure(const PeerLoad& load) override {
    const bool get = load.operation == BenchOperation::kGet;
    const auto fit =
        static_cast<int64_t>(load.expected_bytes_per_second * absl::ToDoubleSeconds(load.run_time) /
                             static_cast<double>(load.bytes));
    PeerFigures figures;
    SHOAL_ASSIGN_OR_RETURN(
        const std::string bandwidth,
        Run(get ? "ib_read_bw" : "ib_write_bw", load.bytes,
            std::clamp(fit, std::max(kFewestIterations, 2 * load.in_flight), kMostIterations),
            {"-t", fmt::format("{}", load.in_flight)}));
    SHOAL_ASSIGN_OR_RETURN(figures.bytes_per_second, ParsePerftestBandwidth(bandwidth));
    const int64_t in_turn = std::clamp(fit / 4, kFewestIterations, kMostIterations / 10);
    SHOAL_ASSIGN_OR_RETURN(figures.latency_seconds,
                           Latency(get ? "ib_read_lat" : "ib_write_lat", load.bytes, in_turn));
    if (!get) {
      // It counts one way; our push is over when it has been acknowledged.
      SHOAL_ASSIGN_OR_RETURN(const double back, AcknowledgementLatency());
      figures.latency_seconds += back;
    }
    return figures;
  }

 private:
  // Taken once: it is the same for all sizes, and a pair of programs takes seconds to start on an
  // emulated processor.
  absl::StatusOr<double> AcknowledgementLatency() {
    if (acknowledgement_seconds_ == 0) {
      SHOAL_ASSIGN_OR_RETURN(
          acknowledgement_seconds_,
          Latency("ib_write_lat", kAcknowledgementBytes, kAcknowledgementIterations));
    }
    return acknowledgement_seconds_;
  }

  absl::StatusOr<double> Latency(const std::string& tool, int64_t bytes, int64_t iterations) const {
    SHOAL_ASSIGN_OR_RETURN(const std::string output, Run(tool, bytes, iterations, {}));
    return ParsePerftestLatency(output);
  }

  absl::StatusOr<std::string> Run(const std::string& tool, int64_t bytes, int64_t iterations,
                                  const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {tool,
                                          "-d",
                                          rail_.device,
                                          "-i",
                                          fmt::format("{}", rail_.port.port),
                                          "-s",
                                          fmt::format("{}", bytes),
                                          "-n",
                                          fmt::format("{}", iterations),
                                          "-F"};
    if (rail_.port.link_layer == LinkLayer::kEthernet && !rail_.gids.empty()) {
      arguments.insert(arguments.end(), {"-x", fmt::format("{}", rail_.gids[0].index)});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgramPair(arguments, "127.0.0.1");
  }

  const Rail rail_;
  double acknowledgement_seconds_ = 0;  // 0: not measured yet
};

}  // namespace

absl::StatusOr<double> ParsePerftestBandwidth(const std::string& output) {
  // #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]
  SHOAL_ASSIGN_OR_RETURN(const std::vector<double> row, FirstRow(output, 5));
  // Small messages are better told by their rate: the average has two digits behind the point.
  const double by_rate = row[4] * 1e6 * row[0];
  const double average = row[3] * static_cast<double>(kMiB);
  return average < 100 * static_cast<double>(kMiB) ? by_rate : average;
}

absl::StatusOr<double> ParsePerftestLatency(const std::string& output) {
  // #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] ...
  SHOAL_ASSIGN_OR_RETURN(const std::vector<double> row, FirstRow(output, 6));
  return row[4] * 1e-6;
}

absl::StatusOr<std::unique_ptr<Peer>> MakePerftest(const PeerOptions& /*options*/) {
  for (const char* tool : {"ib_read_bw", "ib_write_bw", "ib_read_lat", "ib_write_lat"}) {
    if (!ProgramExists(tool)) {
      return NotFound("{} is not on PATH: install perftest (apt-get install perftest)", tool);
    }
  }
  const std::shared_ptr<VerbsApi> verbs = SystemVerbs();
  SHOAL_ASSIGN_OR_RETURN(DeviceChoice choice,
                         ChooseDevices(DescribeDevices(*verbs), {.place = FindServedPlace({})}));
  if (choice.rails.empty()) {
    return Unavailable("perftest needs an RDMA device, and none is fit: {}",
                       choice.rejected.empty()
                           ? "there is none"
                           : fmt::format("{}", fmt::join(choice.rejected, "; ")));
  }
  return std::make_unique<Perftest>(std::move(choice.rails[0]));
}

}  // namespace shoal::transport
