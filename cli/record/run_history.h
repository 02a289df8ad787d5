// What a run's record says (docs/run-record.md), read as hostile input.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/job.h"

namespace shoal::cli {

struct RunHistory {
  struct Step {
    int64_t step = 0;
    double end = 0;                        // seconds since the Unix epoch
    std::map<std::string, double> values;  // "loss", "grad_norm", ..., by key of the record
    std::map<std::string, double> time_shares;
  };
  // What servers hold from this step on: told at the start, and where state has moved.
  struct Placement {
    int64_t step = 0;
    std::vector<int64_t> partitions;  // how many, by server
    int64_t moved_bytes = 0;
  };
  // Something that happened once: "resume", "lost", "stop", "failed checkpoint", "failed".
  struct Mark {
    std::string kind;
    int64_t step = 0;
  };

  std::string name;         // as given
  std::string folder;       // of the record
  std::vector<Step> steps;  // ascending; those that a resume did again are there once
  std::vector<Mark> marks;
  std::vector<Placement> placements;  // ascending
  std::string end;               // "done", "interrupted", "failed"; empty: it runs, or was killed
  std::optional<plan::Job> job;  // nullopt if job.yaml cannot be read
};

// `path`: a checkpoint directory, its record folder, or a metrics.jsonl. An error names the file,
// and the line if one is malformed.
absl::StatusOr<RunHistory> ReadRunHistory(const std::string& path);

// The value of a key at each step that has one. "pause_seconds" is from the end of the step before
// to the beginning of this one.
std::vector<std::pair<double, double>> CurveOf(const RunHistory& run, const std::string& key);

}  // namespace shoal::cli
