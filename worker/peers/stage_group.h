// The stages of a worker's group, or the job's workers, from the coordinator's answer to JoinJob.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"

namespace shoal::worker {

// Workers that may exchange among themselves.
struct WorkerGroup {
  struct Worker {
    std::string name;  // "worker-3"
    std::string address;
    uint64_t incarnation = 0;
  };

  std::string job_id;
  int rank = 0;                 // of this worker
  std::vector<Worker> workers;  // by rank

  int size() const { return static_cast<int>(workers.size()); }
};

struct StageGroup {
  std::string job_id;
  int group = 0;
  int stage = 0;                             // of this worker
  std::vector<WorkerGroup::Worker> workers;  // by stage

  int stages() const { return static_cast<int>(workers.size()); }
  // By its number in the job.
  int WorkerOf(int stage) const { return group * stages() + stage; }
  // "stage 1 (worker-3)"
  std::string NameOf(int stage) const;
  // As peers: a stage is a rank.
  WorkerGroup peers() const { return {.job_id = job_id, .rank = stage, .workers = workers}; }
};

// All workers of the job as one group, this one at its rank among them.
absl::StatusOr<WorkerGroup> PeersFrom(const proto::JoinJobReply& join, uint64_t incarnation);

// Internal if the answer does not name this incarnation where it should.
absl::StatusOr<StageGroup> GroupFrom(const proto::JoinJobReply& join, uint64_t incarnation);

// Checks another worker's call: NotFound, by name, if it is for another job than the group's.
absl::Status CheckJob(const std::string& own_job_id, const std::string& job_id);

// A try at a step; rounds after the first are more work of the same try.
struct StepAttempt {
  int64_t step = 0;
  int64_t attempt = 0;
  int64_t round = 0;

  auto operator<=>(const StepAttempt&) const = default;
};

}  // namespace shoal::worker
