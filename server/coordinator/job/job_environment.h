// What a run of a job is made from: the job as it was loaded, what all jobs share, and, after a
// restart of their owner, where an earlier life left it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/job/job.h"
#include "core/model/shard_map.h"
#include "core/plan/placement/move_pace.h"
#include "core/plan/step/cost_model.h"
#include "proto/coordinator.pb.h"
#include "proto/state.pb.h"
#include "server/coordinator/job/checkpoint_files.h"
#include "server/coordinator/job/server_client.h"
#include "server/coordinator/job/server_demand.h"
#include "server/coordinator/members/coordinator_metrics.h"
#include "server/coordinator/pairs/job_pairs.h"
#include "server/coordinator/state/state_store.h"
#include "server/coordinator/step/expected_pushes.h"
#include "server/coordinator/step/step_planner.h"

namespace shoal::server {

inline constexpr int64_t kNoRun = -1;

// A submitted job with everything that was read for it.
struct LoadedJob {
  std::string id;                   // given at submit
  proto::SubmitJobRequest request;  // with what was resolved
  int64_t servers = 0;  // that it takes, known once it is the first in the queue; 0 before
  int64_t workers = 0;
  absl::Duration patience;   // for members
  int64_t restarts = 0;      // after losses, in a row without a step
  int64_t run = kNoRun;      // its number, once one begins
  std::string workers_kind;  // WorkerKind of those that it began with
  plan::Job job;
  std::string token_file;
  bool trace = false;                                       // workers report spans
  std::function<plan::ShardMap(int servers)> place_shards;  // for so many
  ServerBytes server_bytes;                                 // empty: not to be checked
  plan::ShardMap shard_map;
  PushPlan pushes;
  std::optional<proto::PipelinePlan> pipeline;  // where a step runs as a schedule
  int64_t last_step = 0;                        // the job is done after this one
  plan::CostModel flops;  // of forward and backward; zero where devices are emulated
  std::unique_ptr<StepPlanner> steps;
  std::unique_ptr<JobPairs> pairs;  // where it is trained on pairs of replies; else null
  std::string reference_file;       // where their references are kept
  std::function<absl::Status(std::span<const double>)> keep_references;  // writes it
  std::unique_ptr<CheckpointFiles> checkpoints;
};

using Executor = std::function<void(std::function<void()>)>;

// What jobs share.
struct JobEnvironment {
  const Clock& clock;
  ServerClientFactory make_clients;
  StateStore& store;
  CoordinatorMetrics& metrics;
  Executor post;
  Executor plan;
  Executor disk;
  // Members and owner stay when a job is over: servers are told to let go of it.
  bool stays = false;
  bool durable = false;  // `store` outlives the owner, which may have a next life
  int64_t term = 1;      // of the owner: commands carry it
  absl::Time started = absl::InfinitePast();  // the owner
  plan::MovePace move_pace = {};              // of the first wave of state
  // Hears that a server, or the checkpoint folder, belongs to a later life of the owner: from now
  // on nothing may be told, recorded or answered.
  std::function<void(const absl::Status&)> superseded;
  // The number of a run that begins: all that the owner's lives give differ, and those of one life
  // rise, over its jobs.
  std::function<int64_t()> next_run;
  // Hears that a named point is reached: tests end the process there.
  std::function<void(const char* point)> reached = [](const char*) {};
};

// A run of an earlier life of the owner, whose servers and workers may still be in the middle of
// it.
struct EarlierRun {
  proto::SavedRun saved;
  std::optional<CommitRecord> commit;
};

}  // namespace shoal::server
