// How a worker's job reaches the servers: the client, the ways between them and the device, and the
// source and sink of steps.
#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/model/partition.h"
#include "core/plan/schedule/stage_units.h"
#include "worker/exchange/collective_sink.h"
#include "worker/exchange/collective_source.h"
#include "worker/exchange/device_sink.h"
#include "worker/exchange/device_source.h"
#include "worker/exchange/service_sink.h"
#include "worker/exchange/service_source.h"
#include "worker/job/worker_job.h"

namespace shoal::worker {
namespace {

plan::ShardMap FromProto(const proto::ShardMap& message) {
  plan::ShardMap map{.generation = message.generation()};
  for (const proto::PartitionServers& partition : message.partitions()) {
    map.servers.emplace_back(partition.servers().begin(), partition.servers().end());
  }
  return map;
}

}  // namespace

absl::Status WorkerJob::Connect(const proto::JoinJobReply& join) {
  std::vector<std::string> addresses;
  for (const proto::ServerAddress& server : join.servers()) {
    if (server.index() != static_cast<int>(addresses.size())) {
      return Internal("the coordinator names server-{} where server-{} was due", server.index(),
                      addresses.size());
    }
    addresses.push_back(server.address());
  }
  connector_ = options_.connector(addresses);
  std::vector<transport::Transport*> transports;
  for (const auto& transport : transports_) {
    transports.push_back(transport.get());
  }
  const plan::UnitRange all = plan::AllUnits(spec_);
  contributions_ = stage_ == nullptr ? plan::StageContributions(spec_, {&all, 1})
                                     : plan::StageContributions(spec_, stage_->chunks());
  client::ClientOptions options;
  options.job_id = join.job_id();
  options.incarnation = options_.incarnation;
  options.name = options_.name;
  options.compute_type = plan::ComputeDType(job_);
  options.gradient_type = job_.service.gradient_type;
  options.units = OwnUnits();
  options.keep_for_step = policy_.residency == plan::Residency::kStep;
  const std::vector<plan::PartitionSpec> partitions =
      plan::BuildPartitions(units_, job_.service.partition_bytes);
  if (exchanges()) {
    shards_ = plan::ShardUnits(units_, partitions, exchange_->rank(), exchange_->ranks());
    options.ranges = shards_.whole();
    std::erase_if(options.units, [&](int unit) { return shards_.of(unit).own.count == 0; });
  }
  if (device_ != nullptr) {
    pinned_ = device_->NewHostMemory(0);
    SHOAL_RETURN_IF_ERROR(ChooseWays(transports));
    options.keep_for_step = exchanges() || (options.keep_for_step && ways_.get);  // else the device
    options.view_memory = ways_.view_memory;
    options.push_in_place = ways_.push;
    options.weights_in_gpu = ways_.get;
    options.payloads_in_gpu = ways_.push;
    // A server that keeps weights in its GPU makes a copy on the host first for whoever cannot open
    // them there: gigabytes, while the connection waits.
    options.connect_timeout =
        std::max(options.connect_timeout, absl::Seconds(job_.cluster.start_timeout_seconds));
    transports = ways_.transports;
  }
  options.frames_per_size = plan::FramesPerSize(job_.train);
  options.max_gradients = static_cast<int>(units_.size()) + plan::kGradientBuffersPerSize;
  options.seed = options_.incarnation;
  options.check = [this] { return options_.cancellation->status(); };
  const Cancellation::Listener ends(options_.cancellation,
                                    [this](const absl::Status&) { connector_->Cancel(); });
  SHOAL_ASSIGN_OR_RETURN(client_,
                         client::ParameterClient::Create(
                             options, units_, partitions, FromProto(join.shard_map()),
                             static_cast<int>(addresses.size()), connector_.get(), transports));
  LogServersInGpus();
  meetings_ = std::make_unique<LayerMeetings>(
      job_.train.synchronization == plan::Synchronization::kLayer && !exchanges(), client_.get(),
      &phases_);
  use_order_ = plan::UseOrder(spec_);
  SHOAL_RETURN_IF_ERROR(MakeSourceAndSink());
  if (job_.plan.assignment == plan::Assignment::kDynamic) {
    drawer_ = std::make_unique<MicrobatchDrawer>(options_.draw, options_.incarnation, clock_);
  }
  return absl::OkStatus();
}

absl::Status WorkerJob::ChooseWays(const std::vector<transport::Transport*>& transports) {
  SHOAL_ASSIGN_OR_RETURN(ways_, ChooseDirectWays({.device = device_,
                                                  .pinned = pinned_.get(),
                                                  .transports_reach = machine_.reach != nullptr,
                                                  .compute_type = plan::ComputeDType(job_),
                                                  .wire_type = job_.service.wire_type,
                                                  .gradient_type = job_.service.gradient_type,
                                                  .local = job_.cluster.local},
                                                 transports));
  ways_.push =
      ways_.push && !exchanges();  // a shard's gradient goes in whole partitions of the host
  const auto way = [](bool direct) { return direct ? "directly" : "through pinned memory"; };
  LogInfo("{}: weights get into the memory of {} {}, gradients out of it {}{}{}", options_.name,
          device_->name(), way(ways_.get), way(ways_.push), ways_.why.empty() ? "" : ": ",
          ways_.why);
  return absl::OkStatus();
}

void WorkerJob::LogServersInGpus() const {
  const std::vector<client::ClientStatistics::Connection> servers =
      client_->statistics().connections;
  const auto count = [&](bool client::ClientStatistics::Connection::*in_gpu) {
    return std::ranges::count(servers, true, in_gpu);
  };
  const auto weights = count(&client::ClientStatistics::Connection::weights_in_gpu);
  const auto payloads = count(&client::ClientStatistics::Connection::payloads_in_gpu);
  if (weights + payloads > 0) {
    LogInfo("{}: from GPU to GPU: weights of {} and gradients to {} of {} servers", options_.name,
            weights, payloads, servers.size());
  }
}

std::vector<int> WorkerJob::OwnUnits() const {
  std::vector<int> own;
  for (const plan::UnitSpec& unit : units_) {
    if (contributions_[static_cast<size_t>(unit.index)] > 0) {
      own.push_back(unit.index);
    }
  }
  return own;
}

absl::Status WorkerJob::MakeSourceAndSink() {
  const DType compute = plan::ComputeDType(job_);
  const StepUses::Options uses = {.keep_for_step = policy_.residency == plan::Residency::kStep,
                                  .prefetch_units = job_.train.prefetch_units,
                                  .units = static_cast<int64_t>(units_.size())};
  const PushRule::Options rule = {.push_per_step = policy_.push == plan::PushPolicy::kStep,
                                  .push_each_contribution = plan::PushesEachContribution(job_),
                                  .contributions = contributions_,
                                  .on_done = [this](int unit) { OnUnitDone(unit); }};
  if (exchanges()) {
    SHOAL_ASSIGN_OR_RETURN(
        source_, CollectiveSource::Create({.compute_type = compute,
                                           .uses = uses,
                                           .frames_per_size = plan::FramesPerSize(job_.train)},
                                          units_, shards_, device_, compute_, client_.get(),
                                          exchange_.get(), meetings_.get(), &phases_));
    SHOAL_ASSIGN_OR_RETURN(
        sink_,
        CollectiveSink::Create({.rule = rule, .buffers_per_size = plan::kGradientBuffersPerSize},
                               units_, shards_, device_, compute_, pinned_.get(), client_.get(),
                               exchange_.get(), &phases_));
    return absl::OkStatus();
  }
  if (device_ == nullptr) {
    source_ = std::make_unique<ServiceSource>(
        ServiceSource::Options{.compute_type = compute, .uses = uses}, client_.get(),
        meetings_.get(), &phases_);
    SHOAL_ASSIGN_OR_RETURN(
        sink_,
        ServiceSink::Create({.rule = rule, .buffers_per_size = plan::kGradientBuffersPerSize},
                            units_, client_.get(), meetings_.get(), &phases_));
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(
      source_,
      DeviceSource::Create({.compute_type = compute,
                            .uses = uses,
                            .units = OwnUnits(),
                            .frames_per_size = plan::FramesPerSize(job_.train),
                            .landed = ways_.get},
                           units_, device_, compute_, client_.get(), meetings_.get(), &phases_));
  SHOAL_ASSIGN_OR_RETURN(
      sink_,
      DeviceSink::Create(
          {.rule = rule,
           .buffers_per_size = plan::kGradientBuffersPerSize,
           .in_place = ways_.push ? ways_.transports : std::vector<transport::Transport*>()},
          units_, device_, compute_, pinned_.get(), client_.get(), meetings_.get(), &phases_));
  return absl::OkStatus();
}

}  // namespace shoal::worker
