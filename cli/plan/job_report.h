// A job as `shoal plan` plans it. Prints tables for people or JSON lines for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cli/plan/pipeline_report.h"
#include "cli/plan/simulation.h"
#include "cli/run/command.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "core/model/shard_map.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/step/step_plan.h"

namespace shoal::cli {

// The verdict is the mean of this many steps.
inline constexpr int64_t kVerdictSteps = 50;

// What this machine offers for a job that runs on it.
struct MachineFit {
  int64_t available_bytes = 0;
  int cores = 0;
  absl::Status memory;  // says what is missing
};

struct JobReport {
  plan::Job job;
  plan::ModelSpec spec;
  std::vector<plan::UnitSpec> units;
  std::vector<plan::PartitionSpec> partitions;
  plan::ShardMap shards;
  plan::MemoryPlan memory;
  std::optional<MachineFit> fit;  // of a local job
  Simulation simulation;
  Verdict verdict;
  std::vector<plan::StepPlan> steps;
  std::string recompute;                   // a line, where this machine's memory settled it
  std::optional<PipelineReport> pipeline;  // if steps run as schedules
  plan::StepTraffic traffic;               // of all workers; mean over the steps planned
  double microbatches_per_worker = 0;      // or group; mean over the steps planned
};

void PrintPlan(const JobReport& report, Streams& streams);
void PrintJsonPlan(const JobReport& report, Streams& streams);

}  // namespace shoal::cli
