// A worker's job as all its parts read it: settled from the coordinator's answer to JoinJob before
// anything is opened, and constant afterwards.
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
#include "core/model/huggingface/hf_model.h"
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
  int threads = 0;  // 0: the job's
  // The device, if the flag says more than the job, and how to open it, by default the CPU.
  DeviceFlag device;
  std::function<absl::StatusOr<OpenedDevice>(const DeviceRequest&)> open_device;
  transport::RdmaFlags rdma;
  // Makes the client of the servers at these addresses (HOST:PORT by index).
  std::function<std::unique_ptr<client::ServerClient>(const std::vector<std::string>&)>
      make_server_client;
  // Takes other workers' calls (stages of its group if the job has a pipeline, or peers that
  // exchange), and makes the client of theirs.
  StageService* stage_service = nullptr;
  std::function<std::unique_ptr<StageClient>(const WorkerGroup&)> make_stage_client;
  // For connections of other stages, over transports that listen.
  transport::TransportOptions transports;
  // Asks the coordinator to draw a microbatch.
  MicrobatchDrawer::Draw draw;
  // Told when this worker must end, for waits before there is a job to cancel.
  Cancellation* cancellation = nullptr;
  // Wraps transports before use (fault injection); may be empty.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>
      wrap_transport;
};

struct JobContext {
  WorkerJobOptions options;
  WorkerMetrics* metrics = nullptr;
  Clock* clock = nullptr;
  TimeKindClock* time_kinds = nullptr;

  plan::Job job;         // naming what this worker computes on
  bool gpu_job = false;  // as servers read it
  // According to the job, whatever this worker computes on.
  bool may_exchange = false;
  bool stages_may_exchange = false;
  plan::ModelSpec spec;
  std::vector<plan::UnitSpec> units;
  std::unique_ptr<formats::HfModel> model;  // what is frozen; null: servers have it
  plan::WorkerPolicy policy;
  std::unique_ptr<formats::TokenFile> data;
  std::unique_ptr<formats::TokenFile> validation;  // null: the job has none
  int64_t registered_bytes = 0;                    // with transports, as planned
  // Only with a pipeline.
  StageGroup group;
  std::optional<plan::ChosenPipeline> pipeline;
};

// Opens `opened` too, of the kind that the context says, unless the job emulates a device.
absl::StatusOr<std::unique_ptr<const JobContext>> MakeJobContext(
    const proto::JoinJobReply& join, const WorkerJobOptions& options, WorkerMetrics* metrics,
    Clock* clock, TimeKindClock* time_kinds, OpenedDevice* opened);

}  // namespace shoal::worker
