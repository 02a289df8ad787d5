#include "bench/pipeline/measured.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "bench/report/report.h"
#include "core/base/status.h"
#include "core/plan/pipeline/schedule_drawing.h"
#include "fmt/format.h"
#include "worker/pipeline/links/in_process_links.h"
#include "worker/pipeline/testing/emulated_pipeline.h"

namespace shoal::bench {
namespace {

using worker::StageReport;

// Returns the error of the first stage that failed.
absl::StatusOr<std::vector<StageReport>> ReportsOf(worker::StageReports results) {
  std::vector<StageReport> reports;
  for (auto& result : results) {
    SHOAL_RETURN_IF_ERROR(result.status());
    reports.push_back(*std::move(result));
  }
  return reports;
}

std::optional<plan::Track> TrackOf(worker::StageSpan::Kind kind) {
  switch (kind) {
    case worker::StageSpan::Kind::kCompute:
      return plan::Track::kCompute;
    case worker::StageSpan::Kind::kOffload:
      return plan::Track::kOffload;
    case worker::StageSpan::Kind::kReload:
      return plan::Track::kReload;
    default:
      return std::nullopt;
  }
}

// From the first compute of any stage to the last.
plan::ScheduleTimes TimesOf(const std::vector<StageReport>& reports) {
  absl::Time first = absl::InfiniteFuture();
  for (const StageReport& report : reports) {
    for (const worker::StageSpan& span : report.spans) {
      first = std::min(first, span.begin);
    }
  }
  plan::ScheduleTimes times;
  for (const StageReport& report : reports) {
    plan::StageTimes stage{.peak_device_bytes = report.peak_device_bytes,
                           .peak_host_bytes = report.peak_host_bytes};
    std::vector<plan::ActionSpan> spans;
    for (const worker::StageSpan& span : report.spans) {
      const std::optional<plan::Track> track = TrackOf(span.kind);
      if (!track.has_value()) {
        continue;
      }
      const double begin = absl::ToDoubleSeconds(span.begin - first);
      const double end = begin + absl::ToDoubleSeconds(span.length);
      spans.push_back({.action = span.action, .track = *track, .begin = begin, .end = end});
      times.makespan = std::max(times.makespan, end);
      if (*track == plan::Track::kCompute) {
        stage.begin = stage.compute == 0 ? begin : std::min(stage.begin, begin);
        stage.end = std::max(stage.end, end);
        stage.compute += end - begin;
      }
    }
    times.stages.push_back(stage);
    times.spans.push_back(std::move(spans));
  }
  return times;
}

double LongestStall(const std::vector<StageReport>& reports, worker::Stall stall) {
  double longest = 0;
  for (const StageReport& report : reports) {
    longest = std::max(longest, report.Of(stall).seconds);
  }
  return longest;
}

}  // namespace

absl::StatusOr<Measured> RunCandidate(const Candidate& candidate, const MeasuredOptions& options) {
  const plan::ScheduleShape& shape = candidate.schedule.shape;
  const plan::ScheduleCosts costs = CandidateCosts(shape, candidate.copy_ratio);
  const plan::ChunkCost& cost = costs.Of(0, 0, 0);
  const double rate = cost.offload > 0 ? static_cast<double>(cost.offload_bytes) /
                                             (cost.offload * options.unit_seconds)
                                       : 0;
  worker::InProcessPipeline links(shape.stages);
  worker::EmulatedPipeline pipeline(shape, {.copies = {.bytes_per_second = rate},
                                            .poison = false,
                                            .seconds_per_unit = options.unit_seconds,
                                            .message_bytes = 256});
  std::vector<double> seconds;
  std::vector<double> transfers;
  std::vector<double> neighbours;
  Measured measured;
  for (int step = 0; step <= options.steps; ++step) {
    SHOAL_ASSIGN_OR_RETURN(
        const std::vector<StageReport> reports,
        ReportsOf(pipeline.RunStep(candidate.schedule, costs, AllLinks(links, shape.stages),
                                   /*record_spans=*/true)));
    pipeline.NextStep();
    if (step == 0) {
      continue;
    }
    measured.times = TimesOf(reports);
    seconds.push_back(measured.times.makespan);
    transfers.push_back(LongestStall(reports, worker::Stall::kTransfer));
    neighbours.push_back(LongestStall(reports, worker::Stall::kNeighbour));
  }
  measured.step_seconds = Median(seconds);
  measured.transfer_stall_seconds = Median(transfers);
  measured.neighbour_stall_seconds = Median(neighbours);
  for (const plan::StageTimes& stage : measured.times.stages) {
    measured.peak_device_bytes.push_back(stage.peak_device_bytes);
    measured.peak_host_bytes.push_back(stage.peak_host_bytes);
  }
  return measured;
}

namespace {

constexpr int kMeasuredChunks = 4;
constexpr std::array<int, 3> kMeasuredStages = {2, 4, 8};
constexpr std::array<double, 2> kMeasuredRatios = {0.5, 1.0};
// These also have their own bars.
constexpr std::string_view kBaseline = "interleaved 1F1B";
constexpr std::string_view kHalf = "GIS-H, half offloaded";
constexpr std::string_view kFull = "PO-F";

int64_t Largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

struct Row {
  Candidate candidate;
  Measured measured;
  double simulated_seconds = 0;

  double Difference() const { return measured.step_seconds / simulated_seconds - 1; }
  // Whether simulated and measured peaks are the same on every stage.
  bool SamePeaks() const {
    for (size_t stage = 0; stage < candidate.times.stages.size(); ++stage) {
      const plan::StageTimes& times = candidate.times.stages[stage];
      if (measured.peak_device_bytes[stage] != times.peak_device_bytes ||
          measured.peak_host_bytes[stage] != times.peak_host_bytes) {
        return false;
      }
    }
    return true;
  }
  double PeakChunks() const {
    return static_cast<double>(Largest(measured.peak_device_bytes)) *
           candidate.schedule.shape.chunks / static_cast<double>(kStageBytes);
  }
};

bool IsRun(const Candidate& candidate) {
  return candidate.name != "GPipe" && candidate.name != "ZB-H2";
}

absl::StatusOr<std::vector<Row>> RunAll(const MeasuredOptions& options) {
  std::vector<Row> rows;
  for (const int stages : kMeasuredStages) {
    SHOAL_ASSIGN_OR_RETURN(std::vector<Candidate> candidates,
                           WithoutOffload(stages, kMeasuredChunks, 4 * stages));
    for (const double ratio : kMeasuredRatios) {
      SHOAL_ASSIGN_OR_RETURN(std::vector<Candidate> offloaded,
                             WithOffload(stages, kMeasuredChunks, 4 * stages, ratio));
      std::move(offloaded.begin(), offloaded.end(), std::back_inserter(candidates));
    }
    for (Candidate& candidate : candidates) {
      if (!IsRun(candidate)) {
        continue;
      }
      SHOAL_ASSIGN_OR_RETURN(Measured measured, RunCandidate(candidate, options));
      const double simulated = candidate.times.makespan * options.unit_seconds;
      fmt::print(stderr, "{} stages, {}, k {:g}: {:.3f} s, simulated {:.3f} s\n", stages,
                 candidate.name, candidate.copy_ratio, measured.step_seconds, simulated);
      rows.push_back({.candidate = std::move(candidate),
                      .measured = std::move(measured),
                      .simulated_seconds = simulated});
    }
  }
  return rows;
}

const Row& Find(const std::vector<Row>& rows, std::string_view name, int stages, double ratio) {
  return *std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
    return row.candidate.name == name && row.candidate.schedule.shape.stages == stages &&
           (name == kBaseline || row.candidate.copy_ratio == ratio);
  });
}

void AddBars(const std::vector<Row>& rows, Report& report) {
  const Row& worst = *std::max_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::fabs(a.Difference()) < std::fabs(b.Difference());
  });
  report.Bar("step time, measured against simulated, all rows", "within 5%",
             fmt::format("at most {} ({}, {} stages)", Difference(worst.Difference()),
                         worst.candidate.name, worst.candidate.schedule.shape.stages),
             std::fabs(worst.Difference()) <= 0.05);
  const bool same =
      std::all_of(rows.begin(), rows.end(), [](const Row& r) { return r.SamePeaks(); });
  report.Bar("peaks on device and host, measured against simulated, all rows and stages",
             "the same bytes", same ? "the same" : "not the same", same);
  for (const double ratio : kMeasuredRatios) {
    const Row& base = Find(rows, kBaseline, 4, ratio);
    const Row& half = Find(rows, kHalf, 4, ratio);
    const double peak = half.PeakChunks() / base.PeakChunks();
    const double longer = half.measured.step_seconds / base.measured.step_seconds - 1;
    report.Bar(fmt::format("4 stages, k = {:g}: {} over {}", ratio, kHalf, kBaseline),
               "at most half of its peak, at most 3% longer",
               fmt::format("{:.2f} of its peak, {}", peak, Difference(longer)),
               peak <= 0.5 && longer <= 0.03);
    const double two = Find(rows, kFull, 2, ratio).PeakChunks();
    const double eight = Find(rows, kFull, 8, ratio).PeakChunks();
    report.Bar(fmt::format("k = {:g}: peak of {} from 2 to 8 stages", ratio, kFull),
               "constant, to one chunk",
               fmt::format("{:g}, {:g} and {:g} chunks", two,
                           Find(rows, kFull, 4, ratio).PeakChunks(), eight),
               eight <= two + 1);
  }
}

}  // namespace

absl::Status AddMeasured(const MeasuredOptions& options, Report& report) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Row> rows, RunAll(options));
  report.Heading("Measured");
  report.Paragraph(fmt::format(
      "Run by the runtime (worker/pipeline): stages are threads of one process on emulated "
      "devices, "
      "which compute nothing and take {:g} ms for a microbatch's forward on a stage, with real "
      "memory and real copies at the rate that makes k; {} microbatches for each stage, {} chunks; "
      "medians of {} steps. Peaks are the arena's. Stalls: of the stage that waits longest.",
      1000 * options.unit_seconds, 4, kMeasuredChunks, options.steps));
  std::vector<std::vector<std::string>> table = {{"stages", "schedule", "k", "step, s", "simulated",
                                                  "difference", "peak, chunks", "peak on host",
                                                  "waited for copies, s", "for neighbours, s"}};
  for (const Row& row : rows) {
    const Candidate& candidate = row.candidate;
    table.push_back(
        {std::to_string(candidate.schedule.shape.stages), candidate.name,
         candidate.copy_ratio > 0 ? fmt::format("{:g}", candidate.copy_ratio) : "-",
         fmt::format("{:.3f}", row.measured.step_seconds),
         fmt::format("{:.3f}", row.simulated_seconds), Difference(row.Difference()),
         fmt::format("{:g}", row.PeakChunks()),
         fmt::format("{:g}", static_cast<double>(Largest(row.measured.peak_host_bytes)) *
                                 candidate.schedule.shape.chunks /
                                 static_cast<double>(kStageBytes)),
         fmt::format("{:.3f}", row.measured.transfer_stall_seconds),
         fmt::format("{:.3f}", row.measured.neighbour_stall_seconds)});
  }
  report.Table(table);
  AddBars(rows, report);
  const Row& drawn = Find(rows, kHalf, 4, 0.5);
  report.Picture("measured", "a measured step",
                 plan::DrawSchedule(drawn.candidate.schedule, drawn.measured.times,
                                    {.subtitle = "measured, k = 0.5", .time_unit = "s"}));
  report.Picture("simulated", "the same step, simulated",
                 plan::DrawSchedule(drawn.candidate.schedule, drawn.candidate.times,
                                    {.subtitle = "simulated, in units of a stage's forward"}));
  return absl::OkStatus();
}

}  // namespace shoal::bench
