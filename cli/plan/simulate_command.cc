// `shoal simulate`: says how long a job's steps would take on a described cluster, for each way to
// assign samples and to synchronise.
#include <cmath>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/plan/simulation.h"
#include "cli/run/command.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/base/time_kind.h"
#include "core/base/trace/trace_file.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

struct SimulateOptions {
  SimulationSource source;
  int64_t steps = 100;
  std::string trace;  // file; empty: none
  bool json = false;
};

// A timeline shows the first steps; with many devices only one, or no viewer opens it.
constexpr int64_t kTracedSteps = 3;
constexpr int64_t kManyDevices = 64;

std::string FormatStepTime(double seconds) {
  if (seconds < 1e-3) {
    return fmt::format("{:.1f} us", 1e6 * seconds);
  }
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}
std::string Percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string BytesPerStep(const sim::ChoiceSummary& summary, double bytes) {
  return FormatBytes(std::llround(summary.PerStep(bytes)));
}

// Writes a choice's spans as a process with a row for each worker.
class TraceSink : public sim::SpanSink {
 public:
  TraceSink(formats::TraceFile& file, int64_t process) : file_(file), process_(process) {}

  void BeginStep(int64_t step, double origin) {
    step_ = step;
    origin_ = origin;
  }
  void Add(const sim::SimulatedSpan& span) override {
    const int64_t begin = Nanoseconds(span.begin);
    file_.AddSpan({process_, span.worker}, Name(span.kind), begin, Nanoseconds(span.end) - begin,
                  {{"step", step_}, {"microbatch", span.microbatch}});
  }

 private:
  int64_t Nanoseconds(double seconds) const { return std::llround(1e9 * (origin_ + seconds)); }

  formats::TraceFile& file_;
  const int64_t process_;
  int64_t step_ = 0;
  double origin_ = 0;
};

absl::Status TraceChoice(const Simulation& simulation, const sim::Simulator& simulator,
                         const sim::Choice& choice, int64_t steps, TraceSink& sink) {
  double origin = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    sink.BeginStep(step, origin);
    SHOAL_ASSIGN_OR_RETURN(const auto samples, simulation.minibatches(step));
    SHOAL_ASSIGN_OR_RETURN(
        const sim::StepResult result,
        simulator.Run(samples, choice.assignment, choice.synchronization, &sink));
    origin += result.seconds;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> WriteTrace(const Simulation& simulation, const sim::Simulator& simulator,
                                   const SimulateOptions& options, formats::TraceFile& file) {
  const int64_t steps =
      std::min(options.steps, simulation.devices() > kManyDevices ? 1 : kTracedSteps);
  int64_t process = 0;
  for (const sim::Choice& choice : sim::AllChoices()) {
    file.NameProcess(process, fmt::format("simulated: {}, {}", Name(choice.synchronization),
                                          Name(choice.assignment)));
    for (int64_t worker = 0; worker < simulation.devices(); ++worker) {
      file.NameThread({process, worker}, fmt::format("worker-{}", worker));
    }
    TraceSink sink(file, process);
    SHOAL_RETURN_IF_ERROR(TraceChoice(simulation, simulator, choice, steps, sink));
    ++process;
  }
  SHOAL_RETURN_IF_ERROR(file.Finish());
  return file.spans();
}

void PrintTable(const std::vector<sim::ChoiceSummary>& summaries, const Verdict& verdict,
                Streams& streams) {
  Table table({{"synchronization"},
               {"assignment"},
               {"step", Table::Align::kRight},
               {"p95", Table::Align::kRight},
               {"idle", Table::Align::kRight},
               {std::string(Name(TimeKind::kGetWait)), Table::Align::kRight},
               {std::string(Name(TimeKind::kPushWait)), Table::Align::kRight},
               {std::string(Name(TimeKind::kLayerWait)), Table::Align::kRight},
               {std::string(Name(TimeKind::kStepWait)), Table::Align::kRight},
               {"bytes/step", Table::Align::kRight},
               {"between nodes", Table::Align::kRight},
               {"barriers", Table::Align::kRight},
               {"speed-up", Table::Align::kRight}});
  for (const sim::ChoiceSummary& summary : summaries) {
    const double speed_up = sim::SpeedUp(summary, verdict.baseline);
    const std::string text =
        summary.choice == sim::kBaseline ? "baseline" : fmt::format("{:.2f}", speed_up);
    table.Add({std::string(Name(summary.choice.synchronization)),
               std::string(Name(summary.choice.assignment)), FormatStepTime(summary.mean_seconds),
               FormatStepTime(summary.p95_seconds), Percent(summary.idle_share),
               Percent(summary.get_wait_share), Percent(summary.push_wait_share),
               Percent(summary.layer_wait_share), Percent(summary.step_wait_share),
               BytesPerStep(summary, static_cast<double>(summary.bytes.get + summary.bytes.push)),
               BytesPerStep(summary, summary.bytes.between_nodes),
               WithThousands(std::llround(summary.PerStep(static_cast<double>(summary.barriers)))),
               text});
  }
  streams.out << table.Render(streams.out_terminal);
}

nlohmann::json SummaryJson(const sim::ChoiceSummary& summary, const Verdict& verdict) {
  return {{"event", "simulated"},
          {"synchronization", Name(summary.choice.synchronization)},
          {"assignment", Name(summary.choice.assignment)},
          {"steps", summary.steps},
          {"step_seconds", summary.mean_seconds},
          {"p95_step_seconds", summary.p95_seconds},
          {"idle_share", summary.idle_share},
          {"get_wait_share", summary.get_wait_share},
          {"push_wait_share", summary.push_wait_share},
          {"layer_wait_share", summary.layer_wait_share},
          {"step_wait_share", summary.step_wait_share},
          {"get_bytes_per_step", summary.PerStep(static_cast<double>(summary.bytes.get))},
          {"push_bytes_per_step", summary.PerStep(static_cast<double>(summary.bytes.push))},
          {"between_nodes_bytes_per_step", summary.PerStep(summary.bytes.between_nodes)},
          {"microbatches_per_step", summary.PerStep(static_cast<double>(summary.microbatches))},
          {"barriers_per_step", summary.PerStep(static_cast<double>(summary.barriers))},
          {"speed_up", sim::SpeedUp(summary, verdict.baseline)}};
}

void PrintJsonLines(const Simulation& simulation, const std::vector<sim::ChoiceSummary>& summaries,
                    const Verdict& verdict, Streams& streams) {
  PrintJson(streams.out, {{"event", "simulation"},
                          {"title", simulation.title},
                          {"devices", simulation.devices()},
                          {"notes", simulation.notes}});
  for (const sim::ChoiceSummary& summary : summaries) {
    PrintJson(streams.out, SummaryJson(summary, verdict));
  }
  PrintJson(streams.out, VerdictJson(verdict));
}

absl::StatusOr<ExitCode> RunSimulate(const SimulateOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(const Simulation simulation, OpenSimulation(options.source));
  std::unique_ptr<formats::TraceFile> trace;
  if (!options.trace.empty()) {
    auto created = formats::TraceFile::Create(options.trace, {{"title", simulation.title}});
    SHOAL_RETURN_IF_ERROR(Annotate(created.status(), "--trace"));
    trace = *std::move(created);
  }
  const sim::Simulator simulator(simulation.options);
  std::vector<sim::ChoiceSummary> summaries;
  for (const sim::Choice& choice : sim::AllChoices()) {
    SHOAL_ASSIGN_OR_RETURN(
        summaries.emplace_back(),
        sim::Summarize(simulator, choice, simulation.minibatches, options.steps));
  }
  const Verdict verdict = MakeVerdict(summaries);
  if (options.json) {
    PrintJsonLines(simulation, summaries, verdict, streams);
  } else {
    PrintTitle(simulation, options.steps, streams);
    streams.out << "\n";
    PrintTable(summaries, verdict, streams);
    streams.out << "\n";
    PrintVerdict(verdict, streams);
  }
  if (trace != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const int64_t spans, WriteTrace(simulation, simulator, options, *trace));
    streams.err << fmt::format("wrote {}: {} simulated spans; open it in ui.perfetto.dev\n",
                               options.trace, WithThousands(spans));
  }
  return ExitCode::kDone;
}

}  // namespace

void AddSimulate(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command =
      AddCommand(app, "simulate",
                 "How long steps would take on a cluster, by assignment and "
                 "synchronisation, without running anything",
                 "shoal simulate job.yaml --cluster cluster.yaml --lengths longalign");
  command->add_option("job", options->source.job_file, "Job file (YAML)")->required();
  AddSimulationOptions(*command, options->source);
  command
      ->add_option("--set", options->source.overrides,
                   "KEY=VALUE over the file's (may be repeated)")
      ->allow_extra_args(false);
  command->add_option("--steps", options->steps, "Steps to simulate")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--trace", options->trace,
                      "Write a timeline of the first steps, for Perfetto or chrome://tracing");
  command->add_flag("--json", options->json, "JSON lines instead of a table");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunSimulate(*options, streams); };
  });
}

}  // namespace shoal::cli
