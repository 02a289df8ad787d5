// Which worker is which stage of which group: worker w of a job is stage w % stages of group
// w / stages. Steps are planned over groups; all workers of a group run the same microbatches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace shoal::server {

class WorkerGroups {
 public:
  WorkerGroups() = default;
  // `workers` is a multiple of `stages`.
  WorkerGroups(size_t workers, int64_t stages);

  size_t stages() const { return stages_; }
  size_t groups() const { return groups_; }
  size_t StageOf(size_t worker) const { return worker % stages_; }
  size_t GroupOf(size_t worker) const { return worker / stages_; }
  size_t WorkerAt(size_t group, size_t stage) const { return group * stages_ + stage; }

  // "stage 1 of group 0"; empty if every worker is a group by itself.
  std::string Place(size_t worker) const;

  // The worker that sets the group's pace: the stage that computes longest. `busy_seconds` by
  // worker.
  size_t PaceOf(size_t group, std::span<const double> busy_seconds) const;

 private:
  size_t stages_ = 1;
  size_t groups_ = 0;
};

}  // namespace shoal::server
