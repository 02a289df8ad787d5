// What a worker's job is, as everything that has a part in it reads it: settled from the
// coordinator's answer to JoinJob before anything is opened, and not changed after.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/server_client.h"
#include "core/base/clock.h"
#include "core/base/time_kind_clock.h"
#include "core/data/token_file.h"
#include "core/job/job.h"
#include "core/plan/memory/memory_plan.h"
#include "core/transport/options.h"
#include "core/transport/registry/job_transport.h"
#include "core/transport/transport.h"
#include "proto/coordinator.pb.h"
#include "worker/backend/open/open_device.h"
#include "worker/job/device_flag.h"
#include "worker/job/microbatch_drawer.h"
#include "worker/job/worker_metrics.h"
#include "worker/peers/cancellation.h"
#include "worker/pipeline/stage_job.h"

namespace shoal::worker {

struct WorkerJobOptions {
  std::string name = "worker";  // "worker-1"
  int index = 0;
  uint64_t incarnation = 0;
  int threads = 0;  // 0: by the job
  // What is computed on, where the flag says more than the job; and the way to it, by default to
  // the CPU.
  DeviceFlag device;
  std::function<absl::StatusOr<OpenedDevice>(const DeviceRequest&)> open_device;
  transport::RdmaFlags rdma;
  // Makes the way to the servers at these addresses (HOST:PORT by index).
  std::function<std::unique_ptr<client::ServerClient>(const std::vector<std::string>&)>
      make_server_client;
  // Where other workers come in (stages of its group where the job has a pipeline, or peers that
  // exchange among themselves), and the way to them.
  StageService* stage_service = nullptr;
  std::function<std::unique_ptr<StageClient>(const WorkerGroup&)> make_stage_client;
  // Where connections of other stages come in, for transports that listen.
  transport::TransportOptions transports;
  // Asks the coordinator for a microbatch to be drawn.
  MicrobatchDrawer::Draw draw;
  // Told when this worker is to end, for what is waited for before there is a job to be cancelled.
  Cancellation* cancellation = nullptr;
  // What transports are put into before they are used (fault injection); may be empty.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>
      wrap_transport;
};

struct JobContext {
  WorkerJobOptions options;
  WorkerMetrics* metrics = nullptr;
  Clock* clock = nullptr;
  TimeKindClock* time_kinds = nullptr;

  plan::Job job;         // with what this worker computes on
  bool gpu_job = false;  // as servers read it
  // As the job says, whatever this worker computes on.
  bool may_exchange = false;
  bool stages_may_exchange = false;
  plan::ModelSpec spec;
  std::vector<plan::UnitSpec> units;
  plan::WorkerPolicy policy;
  std::unique_ptr<formats::TokenFile> data;
  int64_t registered_bytes = 0;  // with transports, as planned
  // Where the job has a pipeline.
  StageGroup group;
  std::optional<plan::ChosenPipeline> pipeline;
};

// Opens `opened` as well, which the context says the kind of; not where the job emulates one.
absl::StatusOr<std::unique_ptr<const JobContext>> MakeJobContext(
    const proto::JoinJobReply& join, const WorkerJobOptions& options, WorkerMetrics* metrics,
    Clock* clock, TimeKindClock* time_kinds, OpenedDevice* opened);

}  // namespace shoal::worker
