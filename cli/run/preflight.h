// What `shoal train` makes sure of before it starts or submits anything, so that bad input costs
// seconds and ends in one line: the job file, the model, what the checkpoint directory holds, and
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/prepare.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/memory_plan.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::cli {

// The job file read, overridden and resolved against its folder and this machine.
absl::StatusOr<plan::Job> ReadJob(const std::string& job_file,
                                  const std::vector<std::string>& overrides);
// The same against another machine.
absl::StatusOr<plan::Job> ReadJob(const std::string& job_file,
                                  const std::vector<std::string>& overrides,
                                  const plan::MachineOffer& machine);

// A job that runs elsewhere says where, and serves no metrics here (-1: none are asked for).
absl::Status CheckCluster(const plan::Job& job, const std::string& job_file, int metrics_port);

// Puts where the job gives `key` before what is wrong with its value: "job.yaml:3: data.train: ".
absl::Status AtKey(const absl::Status& status, const std::string& key, const std::string& job_file,
                   const std::vector<std::string>& overrides);

// Same, of what is wrong with a key that it begins with itself.
absl::Status AtItsKey(const absl::Status& status, const std::string& job_file,
                      const std::vector<std::string>& overrides);

// What is named by data.train, the sources of data.mixture or another key of samples can be read.
absl::Status CheckData(const std::vector<std::string>& paths, plan::Objective objective);
// The one of the two that this job has.
const char* KeyOfTrainingData(const plan::Job& job);

// Returns the job's model, with its adapters. Every weight file is there and whole, shapes are
// right.
absl::StatusOr<plan::ModelSpec> CheckModel(const plan::Job& job, const std::string& job_file,
                                           const std::vector<std::string>& overrides);

// Each of train.groups has a tensor of the model.
absl::Status CheckGroups(const plan::Job& job, const plan::ModelSpec& spec);

// Of --resume, beside a checkpoint's step.
inline constexpr const char* kResumeNewest = "newest";
inline constexpr const char* kResumeAuto = "auto";

// The checkpoint to go on from, of which every byte was verified. An error names the damaged file,
// and the newest checkpoint before it that is whole; with kResumeAuto that one is taken, and null
// where there is none to go on from.
absl::StatusOr<std::optional<server::CheckpointInfo>> ChooseCheckpoint(const std::string& directory,
                                                                       const std::string& resume);

// InvalidArgument for a job that nobody can leave: what `shoal train` does while it follows one,
// nobody would do.
absl::Status CheckDetach(const plan::Job& job, const std::string& job_file,
                         const std::vector<std::string>& overrides);

// Gives `job` what it leaves open and the checkpoint's job has: data.date, plan.pack_groups and
// preference.reference. Before anything that depends on these is settled.
absl::Status SettleAsBefore(const std::optional<server::CheckpointInfo>& checkpoint,
                            plan::Job& job);

// What differs between a checkpoint's job and the one that is to go on from it, a line for each
// key. FailedPrecondition, unless `accept`, where the packs of the steps to come would be others:
// data.*, train.objective, train.minibatch_samples and plan.pack_groups.
absl::StatusOr<std::vector<std::string>> CheckResumedJob(const server::CheckpointInfo& checkpoint,
                                                         const plan::Job& job, bool accept);

// Which matrices have adapters, and how much of the model that is; "" where none has.
std::string DescribeAdapters(const plan::ModelSpec& spec);

// Warnings of data that the job can train on, but hardly as it was meant.
std::vector<std::string> DataWarnings(const plan::Job& job, const plan::ModelSpec& spec,
                                      const worker::PrepareSummary& data);

// Whether the checkpoint directory, which exists, has room: ResourceExhausted where not even one
// checkpoint fits, a warning where checkpoint.keep and the next do not, else "". With `overwrite`
// those that are there make room.
absl::StatusOr<std::string> CheckRoom(const plan::Job& job, const plan::ModelSpec& spec,
                                      bool overwrite);

// Refuses a directory that holds complete checkpoints.
absl::Status CheckEmpty(const std::string& directory);
// Refuses one whose newest checkpoint is newer than the one that a run with --resume has found, if
// any: another run has completed it since, which is no mistake of the user's, so the status is
// kAborted.
absl::Status CheckNotOvertaken(const std::string& directory,
                               const std::optional<server::CheckpointInfo>& found);

// Removes what a process that was killed had not finished writing there: the run's lock is held, so
// nobody writes it any more.
void RemoveUnfinishedFiles(const std::string& directory);

// The GPUs that a local job's workers share, by number; none where they compute on the CPU, or
// elsewhere. An error says why there is no GPU for a job that wants one.
absl::StatusOr<std::vector<int>> CheckGpus(const plan::Job& job);

// The processes of a local cluster fit into `available_bytes`; ResourceExhausted says what they
// need. The plan is returned. `stages` are those of the job's pipeline, where it has one.
absl::StatusOr<plan::MemoryPlan> CheckMemory(const plan::ModelSpec& spec, const plan::Job& job,
                                             int64_t available_bytes,
                                             std::span<const plan::StageNeeds> stages = {});

}  // namespace shoal::cli
