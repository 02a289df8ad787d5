#include "cli/record/run_history.h"

#include <filesystem>

#include "absl/strings/str_split.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "server/coordinator/record/run_record.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> FileAt(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    return path;
  }
  for (const std::string& folder : {path, server::RecordFolder(path)}) {
    if (const std::string file = fmt::format("{}/{}", folder, server::kRecordFile);
        fs::is_regular_file(file, error)) {
      return file;
    }
  }
  return NotFound(
      "{}: there is no record of a run (record/{}): name a checkpoint.directory in which a step "
      "was "
      "committed",
      path, server::kRecordFile);
}

void TakeNumbers(const Json& from, std::map<std::string, double>& into) {
  for (const auto& [key, value] : from.items()) {
    if (value.is_number() && key != "time" && key != "step") {
      into[key] = value.get<double>();
    }
  }
}

// What stands behind this step, which is done again.
template <typename Entry>
void DropFrom(int64_t step, std::vector<Entry>& entries) {
  while (!entries.empty() && entries.back().step >= step) {
    entries.pop_back();
  }
}

absl::Status TakeStep(const JsonObject& object, const Json& line, int64_t step, RunHistory& run) {
  RunHistory::Step taken{.step = step};
  TakeNumbers(line, taken.values);
  if (const Json* shares = object.Find("time_shares"); shares != nullptr && shares->is_object()) {
    TakeNumbers(*shares, taken.time_shares);
  }
  SHOAL_ASSIGN_OR_RETURN(taken.end, object.NumberOr("time", 0));
  DropFrom(step, run.steps);
  if (const auto seconds = taken.values.find("step_seconds");
      seconds != taken.values.end() && !run.steps.empty() && run.steps.back().step == step - 1) {
    taken.values["pause_seconds"] = taken.end - seconds->second - run.steps.back().end;
  }
  run.steps.push_back(std::move(taken));
  return absl::OkStatus();
}

absl::Status TakePlacement(const JsonObject& object, int64_t step, RunHistory& run) {
  if (object.Find("held") == nullptr) {
    return absl::OkStatus();
  }
  RunHistory::Placement placement{.step = step};
  SHOAL_ASSIGN_OR_RETURN(const Json* held, object.Array("held"));
  for (const Json& partitions : *held) {
    SHOAL_ASSIGN_OR_RETURN(placement.partitions.emplace_back(),
                           IntegerIn(partitions, 0, INT64_MAX, object.where() + ": held"));
  }
  SHOAL_ASSIGN_OR_RETURN(placement.moved_bytes, object.IntegerOr("bytes", 0));
  DropFrom(step, run.placements);
  run.placements.push_back(std::move(placement));
  return absl::OkStatus();
}

absl::Status TakeLine(const Json& line, const std::string& where, RunHistory& run) {
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(line, where));
  SHOAL_ASSIGN_OR_RETURN(const std::string event, object.String("event"));
  SHOAL_ASSIGN_OR_RETURN(const int64_t step, object.IntegerOr("step", 0));
  if (event == "step") {
    return TakeStep(object, line, step, run);
  }
  if (event == "moved") {
    return TakePlacement(object, step, run);
  }
  if (event == "validation") {
    if (!run.steps.empty() && run.steps.back().step == step) {
      SHOAL_ASSIGN_OR_RETURN(run.steps.back().values["validation_loss"], object.Number("loss"));
    }
    return absl::OkStatus();
  }
  if (event == "start" || event == "resume") {
    DropFrom(step + 1, run.steps);
    run.end.clear();
    SHOAL_RETURN_IF_ERROR(TakePlacement(object, step + 1, run));
  }
  if (event == "resume" || event == "lost" || event == "stop" || event == "failed") {
    run.marks.push_back({event, step});
  } else if (event == "checkpoint" && object.Find("error") != nullptr) {
    run.marks.push_back({"failed checkpoint", step});
  }
  if (event == "done" || event == "interrupted" || event == "failed") {
    run.end = event;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunHistory> ReadRunHistory(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const std::string file, FileAt(path));
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  RunHistory run{.name = path, .folder = fs::path(file).parent_path().string()};
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();  // empty, or cut short by a kill
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string where = fmt::format("{}:{}", file, i + 1);
    SHOAL_ASSIGN_OR_RETURN(const Json line, ParseJson(lines[i], where));
    SHOAL_RETURN_IF_ERROR(TakeLine(line, where, run));
  }
  if (run.steps.empty()) {
    return NotFound("{}: has no step yet", file);
  }
  const std::string job_file = run.folder + "/job.yaml";
  if (const auto yaml = ReadFile(job_file); yaml.ok()) {
    if (auto job = plan::ParseJob(*yaml, job_file); job.ok()) {
      run.job = *std::move(job);
    }
  }
  return run;
}

std::vector<std::pair<double, double>> CurveOf(const RunHistory& run, const std::string& key) {
  std::vector<std::pair<double, double>> points;
  for (const RunHistory::Step& step : run.steps) {
    if (const auto found = step.values.find(key); found != step.values.end()) {
      points.emplace_back(static_cast<double>(step.step), found->second);
    }
  }
  return points;
}

}  // namespace shoal::cli
