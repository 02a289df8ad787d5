#include "client/cli/bench_verb.h"

#include <memory>

#include "CLI/CLI.hpp"
#include "common/bytes.h"
#include "common/status.h"
#include "server/store/bench.h"
#include "transport/bench.h"

namespace shoal::cli {

absl::StatusOr<ExitCode> RunBenchTransport(const BenchTransportOptions& options, Streams& streams) {
  transport::BenchOptions bench{
      .transports = options.transports, .clients = options.clients, .runs = options.runs};
  bench.sizes.clear();
  for (const std::string& size : options.sizes) {
    SHOAL_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(size));
    bench.sizes.push_back(bytes);
  }
  SHOAL_ASSIGN_OR_RETURN(bench.memory_bytes, ParseBytes(options.memory));
  SHOAL_ASSIGN_OR_RETURN(const auto points, transport::RunTransportBench(bench));
  streams.out << (options.json ? transport::FormatBenchJson(points)
                               : transport::FormatBenchTable(points));
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

void AddBench(CLI::App& app, VerbAction& action) {
  CLI::App* parent = AddVerb(app, "bench", "How fast this machine does what a step is made of",
                             "shoal bench transport");
  parent->require_subcommand(1);

  auto transport = std::make_shared<BenchTransportOptions>();
  CLI::App* transport_verb =
      AddVerb(*parent, "transport", "Gets and pushes, against memcpy or a plain socket loop",
              "shoal bench transport --transports shm --sizes 1MiB,16MiB");
  transport_verb->add_option("--transports", transport->transports, "shm, tcp")
      ->delimiter(',')
      ->capture_default_str();
  transport_verb->add_option("--sizes", transport->sizes, "Bytes of one operation")
      ->delimiter(',')
      ->capture_default_str();
  transport_verb->add_option("--clients", transport->clients, "At once")
      ->delimiter(',')
      ->capture_default_str();
  transport_verb->add_option("--runs", transport->runs, "The median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  transport_verb
      ->add_option("--memory", transport->memory, "Bytes walked through; more than the caches hold")
      ->capture_default_str();
  transport_verb->add_flag("--json", transport->json, "JSON lines instead of a table");
  transport_verb->callback([transport, &action] {
    action = [transport](Streams& streams) { return RunBenchTransport(*transport, streams); };
  });

  auto store = std::make_shared<BenchStoreOptions>();
  CLI::App* store_verb =
      AddVerb(*parent, "store", "Accumulation and AdamW, against a streaming triad",
              "shoal bench store --threads 2");
  store_verb->add_option("--threads", store->threads, "0: all cores")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  store_verb->add_option("--elements", store->elements, "Of each array")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  store_verb->add_option("--runs", store->runs, "The median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  store_verb->add_flag("--json", store->json, "JSON lines instead of a table");
  store_verb->callback([store, &action] {
    action = [store](Streams& streams) { return RunBenchStore(*store, streams); };
  });
}

}  // namespace shoal::cli
