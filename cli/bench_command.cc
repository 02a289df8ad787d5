#include "cli/bench_command.h"

#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/transport/bench/bench.h"
#include "core/transport/bench/bench_chart.h"
#include "server/store/bench.h"

namespace shoal::cli {

namespace {

absl::StatusOr<std::vector<int64_t>> ParseSizes(const std::vector<std::string>& texts,
                                                std::vector<int64_t> usual) {
  if (texts.empty()) {
    return usual;
  }
  std::vector<int64_t> sizes;
  for (const std::string& text : texts) {
    SHOAL_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(text));
    sizes.push_back(bytes);
  }
  return sizes;
}

// The header comes with the first row: a refusal prints none.
class Rows {
 public:
  Rows(Streams& streams, std::string header) : streams_(streams), header_(std::move(header)) {}
  void Add(const std::string& row) {
    streams_.out << std::exchange(header_, "") << row << std::flush;
  }

 private:
  Streams& streams_;
  std::string header_;
};

void TellLeftOut(const std::vector<std::string>& left_out, Streams& streams) {
  for (const std::string& line : left_out) {
    streams.err << "left out: " << line << "\n";
  }
}

// Without gnuplot there is no picture, and a line that says so.
absl::Status Draw(const transport::BenchReport& report, const std::string& path, Streams& streams) {
  const absl::StatusOr<std::string> svg = chart::RenderSvg(transport::ChartOf(report));
  if (absl::IsNotFound(svg.status())) {
    streams.err << Message(svg.status()) << "\n";
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(svg.status());
  return WriteFileAtomically(path, *svg);
}

}  // namespace

absl::StatusOr<ExitCode> RunBenchTransport(const BenchTransportOptions& options, Streams& streams) {
  transport::BenchOptions bench{.transports = options.transports,
                                .clients = options.clients,
                                .runs = options.runs,
                                .run_time = absl::Seconds(options.seconds),
                                .encrypt = options.encrypt};
  SHOAL_ASSIGN_OR_RETURN(bench.sizes, ParseSizes(options.sizes, bench.sizes));
  SHOAL_ASSIGN_OR_RETURN(bench.memory_bytes, ParseBytes(options.memory));
  Rows rows(streams, options.json ? "" : transport::FormatBenchHeader());
  SHOAL_ASSIGN_OR_RETURN(
      const auto report,
      transport::RunTransportBench(bench, [&](const transport::BenchPoint& point) {
        rows.Add(options.json ? transport::FormatBenchJson(point)
                              : transport::FormatBenchRow(point));
      }));
  TellLeftOut(report.left_out, streams);
  if (!options.svg.empty()) {
    SHOAL_RETURN_IF_ERROR(Draw(report, options.svg, streams));
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> RunBenchStore(const BenchStoreOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(
      const server::StoreBenchReport report,
      server::RunStoreBench(
          {.threads = options.threads, .elements = options.elements, .runs = options.runs}));
  streams.out << (options.json ? server::FormatStoreBenchJson(report)
                               : server::FormatStoreBenchTable(report));
  return ExitCode::kDone;
}

void AddBench(CLI::App& app, CommandAction& action) {
  CLI::App* parent = AddCommand(app, "bench", "How fast this machine does what a step is made of",
                                "shoal bench transport");
  parent->require_subcommand(1);

  auto transport = std::make_shared<BenchTransportOptions>();
  CLI::App* transport_command = AddCommand(
      *parent, "transport", "Gets and pushes over each transport, against the machine's own limits",
      "shoal bench transport --transports shm,tcp --svg transports.svg");
  transport_command
      ->add_option("--transports", transport->transports,
                   "shm, verbs, tcp; all that this machine has, if not given")
      ->delimiter(',');
  transport_command
      ->add_option("--sizes", transport->sizes,
                   "Bytes of one operation; 64 B to 256 MiB, if not given")
      ->delimiter(',');
  transport_command->add_option("--clients", transport->clients, "At once")
      ->delimiter(',')
      ->capture_default_str();
  transport_command->add_option("--runs", transport->runs, "The median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  transport_command->add_option("--seconds", transport->seconds, "Of one run")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  transport_command
      ->add_option("--memory", transport->memory, "Bytes walked through; more than the caches hold")
      ->capture_default_str();
  transport_command->add_flag("--encrypt", transport->encrypt, "Over tcp, encrypted (AES-128-GCM)");
  transport_command->add_flag("--json", transport->json, "JSON lines instead of a table");
  transport_command->add_option(
      "--svg", transport->svg,
      "SVG file for a chart of bandwidth and latency by size (needs gnuplot)");
  transport_command->callback([transport, &action] {
    action = [transport](Streams& streams) { return RunBenchTransport(*transport, streams); };
  });

  auto store = std::make_shared<BenchStoreOptions>();
  CLI::App* store_command =
      AddCommand(*parent, "store", "Accumulation and AdamW, against a streaming triad",
                 "shoal bench store --threads 2");
  store_command->add_option("--threads", store->threads, "0: all cores")
      ->check(AtLeast(0))
      ->capture_default_str();
  store_command->add_option("--elements", store->elements, "Of each array")
      ->check(AtLeast(1))
      ->capture_default_str();
  store_command->add_option("--runs", store->runs, "The median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  store_command->add_flag("--json", store->json, "JSON lines instead of a table");
  store_command->callback([store, &action] {
    action = [store](Streams& streams) { return RunBenchStore(*store, streams); };
  });
}

}  // namespace shoal::cli
