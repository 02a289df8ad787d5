#include "worker/job/attachment.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "core/model/partition.h"
#include "core/plan/schedule/stage_units.h"
#include "core/transport/registry/job_transport.h"
#include "fmt/ranges.h"
#include "worker/exchange/collective_sink.h"
#include "worker/exchange/collective_source.h"
#include "worker/exchange/device_sink.h"
#include "worker/exchange/device_source.h"
#include "worker/exchange/service_sink.h"
#include "worker/exchange/service_source.h"

namespace shoal::worker {
namespace {

// For acknowledgements after the last push: servers may be adding up all workers' pushes at once.
constexpr absl::Duration kFinishTimeout = absl::Seconds(60);

absl::StatusOr<std::vector<std::string>> AddressesOf(const proto::JoinJobReply& join) {
  std::vector<std::string> addresses;
  for (const proto::ServerAddress& server : join.servers()) {
    if (server.index() != static_cast<int>(addresses.size())) {
      return Internal("the coordinator names server-{} where server-{} was due", server.index(),
                      addresses.size());
    }
    addresses.push_back(server.address());
  }
  return addresses;
}

// The key by which the host makes weights that others have in another form; empty: none.
std::string_view KeyThatConverts(const plan::ModelSpec& spec) {
  if (spec.quantize == plan::Quantize::kNf4) {
    return "lora.quantize";
  }
  return spec.from_files ? "service.frozen" : "";
}

}  // namespace

std::vector<transport::Transport*> JobTransports::all() const {
  std::vector<transport::Transport*> pointers;
  for (const auto& transport : owned) {
    pointers.push_back(transport.get());
  }
  return pointers;
}

absl::StatusOr<JobTransports> OpenTransports(const JobContext& context,
                                             std::shared_ptr<transport::GpuMemory> reach) {
  JobTransports transports;
  absl::Status last;
  transport::TransportOptions options = context.options.transports;
  options.gpu_memory = std::move(reach);
  options.gpu_job = context.gpu_job;
  for (const std::string& name : context.job.service.transports) {
    auto transport = transport::CreateJobTransport(name, context.job.service, context.options.rdma,
                                                   options, context.registered_bytes);
    if (!transport.ok()) {
      transport::LogUnavailable(name, transport.status());
      transports.unavailable.push_back(fmt::format("{}: {}", name, Message(transport.status())));
      last = transport.status();
      continue;
    }
    transports.owned.push_back(context.options.wrap_transport
                                   ? context.options.wrap_transport(*std::move(transport))
                                   : *std::move(transport));
  }
  if (transports.owned.empty()) {
    return last;
  }
  return transports;
}

absl::Status Attachment::JoinRendezvous(const proto::JoinJobReply& join) {
  if (!context_.may_exchange || join.workers() < 2) {
    return absl::OkStatus();
  }
  std::string why = join.without_peers();
  if (join.peers_size() > 0) {
    SHOAL_ASSIGN_OR_RETURN(WorkerGroup peers, PeersFrom(join, context_.options.incarnation));
    LayerExchange::Options options{
        .peers = peers,
        .client = context_.options.make_stage_client(peers),
        .service = &context_.options.stage_service->peers(),
        .collectives = OpenCollectives(options_.device, options_.open_collectives),
        .device = options_.device,
        .generation = join.shard_map().generation(),
        .cancellation = context_.options.cancellation,
        .check = [this] { return client_->CheckAttempt(); },
    };
    SHOAL_ASSIGN_OR_RETURN(exchange_, LayerExchange::Create(std::move(options)));
    why = exchange_->why_not();
  }
  if (exchanges()) {
    LogInfo("{}: layers are gathered and summed among {} workers by {}", context_.options.name,
            exchange_->ranks(), exchange_->library());
  } else if (options_.device != nullptr) {
    LogWarning("{}: workers meet at layers over the servers, with gets and pushes: {}",
               context_.options.name, why);
    context_.metrics->OnNoExchange();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Attachment>> Attachment::Create(const JobContext& context,
                                                               Options options,
                                                               const proto::JoinJobReply& join) {
  std::unique_ptr<Attachment> attachment(new Attachment(context, std::move(options)));
  SHOAL_RETURN_IF_ERROR(attachment->JoinRendezvous(join));
  SHOAL_RETURN_IF_ERROR(attachment->Connect(join));
  SHOAL_RETURN_IF_ERROR(attachment->MakeSourceAndSink());
  return attachment;
}

Attachment::~Attachment() {
  if (exchange_ != nullptr) {  // before anything waits for what others never reach
    exchange_->Disconnect();
  }
  source_.reset();
  if (sink_ != nullptr) {
    sink_->EndStep().IgnoreError();  // ends its calls to the client
  }
  if (servers_ != nullptr) {
    servers_->Cancel();  // the client waits for a connection under way to a server that let go
  }
  client_.reset();  // its threads return gradients to the sink
}

bool Attachment::Follow(const proto::JoinJobReply& join) {
  return exchange_ == nullptr &&
         client_->Follow(
             context_.units,
             plan::BuildPartitions(context_.units, context_.job.service.partition_bytes),
             plan::FromMessage(join.shard_map()));
}

absl::StatusOr<client::ClientOptions> Attachment::MakeClientOptions(
    const std::string& job_id, const std::vector<plan::PartitionSpec>& partitions) {
  client::ClientOptions options;
  options.job_id = job_id;
  options.incarnation = context_.options.incarnation;
  options.name = context_.options.name;
  options.compute_type = plan::ComputeDType(context_.job);
  options.gradient_type = context_.job.service.gradient_type;
  options.verify_pushes = context_.job.service.verify_pushes;
  options.got = [metrics = context_.metrics](const std::string& transport, absl::Duration took) {
    metrics->OnGet(transport, took);
  };
  options.pushed = [metrics = context_.metrics](const std::string& transport, absl::Duration took) {
    metrics->OnPush(transport, took);
  };
  options.units = OwnUnits();
  if (context_.model != nullptr) {
    options.files = [model = context_.model.get()](int unit, int64_t offset, std::span<float> out) {
      return model->ReadUnit(unit, offset, out);
    };
  }
  options.keep_for_step = context_.policy.residency == plan::Residency::kStep;
  if (exchanges()) {
    shards_ = plan::ShardUnits(context_.units, partitions, exchange_->rank(), exchange_->ranks());
    options.ranges = shards_.whole();
    std::erase_if(options.units, [&](int unit) { return shards_.of(unit).own.count == 0; });
  }
  if (options_.device != nullptr) {
    pinned_ = options_.device->NewHostMemory(0);
    SHOAL_RETURN_IF_ERROR(ChoosePaths());
    // Otherwise the device keeps them.
    options.keep_for_step = exchanges() || (options.keep_for_step && gpu_direct_.get);
    options.view_memory = gpu_direct_.view_memory;
    options.push_in_place = gpu_direct_.push;
    options.weights_in_gpu = gpu_direct_.get;
    options.payloads_in_gpu = gpu_direct_.push;
    // A server with weights in its GPU first copies them to the host for clients that cannot open
    // them there: gigabytes, while the connection waits.
    options.connect_timeout = std::max(options.connect_timeout,
                                       absl::Seconds(context_.job.cluster.start_timeout_seconds));
  }
  options.buffers_per_size = plan::BuffersPerSize(context_.job.train);
  options.max_gradients = static_cast<int>(context_.units.size()) + plan::kGradientBuffersPerSize;
  options.seed = context_.options.incarnation;
  options.check = [this] { return context_.options.cancellation->status(); };
  return options;
}

absl::Status Attachment::Connect(const proto::JoinJobReply& join) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, AddressesOf(join));
  servers_ = context_.options.make_server_client(addresses);
  const std::vector<plan::PartitionSpec> partitions =
      plan::BuildPartitions(context_.units, context_.job.service.partition_bytes);
  SHOAL_ASSIGN_OR_RETURN(const client::ClientOptions options,
                         MakeClientOptions(join.job_id(), partitions));
  const Cancellation::Listener ends(context_.options.cancellation,
                                    [this](const absl::Status&) { servers_->Cancel(); });
  SHOAL_ASSIGN_OR_RETURN(
      client_,
      client::ParameterClient::Create(
          options, context_.units, partitions, plan::FromMessage(join.shard_map()),
          static_cast<int>(addresses.size()), servers_.get(),
          options_.device == nullptr ? options_.transports->all() : gpu_direct_.transports));
  LogServersInGpus();
  barriers_ = std::make_unique<LayerBarriers>(
      context_.job.train.synchronization == plan::Synchronization::kLayer && !exchanges(),
      client_.get(), context_.time_kinds);
  return absl::OkStatus();
}

absl::Status Attachment::ChoosePaths() {
  SHOAL_ASSIGN_OR_RETURN(gpu_direct_,
                         ChooseGpuDirect({.device = options_.device,
                                          .pinned = pinned_.get(),
                                          .transports_reach = options_.transports_reach,
                                          .compute_type = plan::ComputeDType(context_.job),
                                          .wire_type = context_.job.service.wire_type,
                                          .gradient_type = context_.job.service.gradient_type,
                                          .converts = KeyThatConverts(context_.spec),
                                          .local = context_.job.cluster.local},
                                         options_.transports->all()));
  gpu_direct_.push =
      gpu_direct_.push && !exchanges();  // a shard's gradient goes in whole host partitions
  const auto path = [](bool direct) { return direct ? "directly" : "through pinned memory"; };
  LogInfo("{}: weights get into the memory of {} {}, gradients out of it {}{}{}",
          context_.options.name, options_.device->name(), path(gpu_direct_.get),
          path(gpu_direct_.push), gpu_direct_.why.empty() ? "" : ": ", gpu_direct_.why);
  return absl::OkStatus();
}

void Attachment::LogServersInGpus() const {
  const std::vector<client::ClientStatistics::Connection> servers =
      client_->statistics().connections;
  const auto count = [&](bool client::ClientStatistics::Connection::*in_gpu) {
    return std::ranges::count(servers, true, in_gpu);
  };
  const auto weights = count(&client::ClientStatistics::Connection::weights_in_gpu);
  const auto payloads = count(&client::ClientStatistics::Connection::payloads_in_gpu);
  if (weights + payloads > 0) {
    LogInfo("{}: from GPU to GPU: weights of {} and gradients to {} of {} servers",
            context_.options.name, weights, payloads, servers.size());
  }
}

std::vector<int> Attachment::OwnUnits() const {
  std::vector<int> own;
  for (const plan::UnitSpec& unit : context_.units) {
    if (options_.contributions[static_cast<size_t>(unit.index)] > 0) {
      own.push_back(unit.index);
    }
  }
  return own;
}

absl::Status Attachment::MakeSourceAndSink() {
  const DType compute = plan::ComputeDType(context_.job);
  const StepUses::Options uses = {
      .keep_for_step = context_.policy.residency == plan::Residency::kStep,
      .prefetch_units = context_.job.train.prefetch_units,
      .units = static_cast<int64_t>(context_.units.size())};
  const PushRule::Options rule = {
      .push_per_step = context_.policy.push == plan::PushPolicy::kStep,
      .push_each_contribution = plan::PushesEachContribution(context_.job),
      .contributions = plan::TrainedContributions(context_.units, options_.contributions),
      .keys_per_pack = plan::KeysPerPack(context_.spec, context_.job),
      .on_done = options_.on_unit_done};
  const StepEnvironment environment = {.units = context_.units,
                                       .device = options_.device,
                                       .compute = options_.compute,
                                       .host = pinned_.get(),
                                       .client = client_.get(),
                                       .barriers = barriers_.get(),
                                       .time_kinds = context_.time_kinds};
  if (exchanges()) {
    SHOAL_ASSIGN_OR_RETURN(
        source_,
        CollectiveSource::Create({.compute_type = compute,
                                  .uses = uses,
                                  .buffers_per_size = plan::BuffersPerSize(context_.job.train)},
                                 environment, shards_, exchange_.get()));
    SHOAL_ASSIGN_OR_RETURN(
        sink_,
        CollectiveSink::Create({.rule = rule, .buffers_per_size = plan::kGradientBuffersPerSize},
                               environment, shards_, exchange_.get()));
    return absl::OkStatus();
  }
  if (options_.device == nullptr) {
    source_ = std::make_unique<ServiceSource>(
        ServiceSource::Options{.compute_type = compute, .uses = uses}, client_.get(),
        barriers_.get(), context_.time_kinds);
    SHOAL_ASSIGN_OR_RETURN(
        sink_,
        ServiceSink::Create({.rule = rule, .buffers_per_size = plan::kGradientBuffersPerSize},
                            context_.units, client_.get(), barriers_.get(), context_.time_kinds));
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(
      source_, DeviceSource::Create({.compute_type = compute,
                                     .uses = uses,
                                     .units = OwnUnits(),
                                     .buffers_per_size = plan::BuffersPerSize(context_.job.train),
                                     .landed = gpu_direct_.get},
                                    environment));
  SHOAL_ASSIGN_OR_RETURN(
      sink_,
      DeviceSink::Create({.rule = rule,
                          .buffers_per_size = plan::kGradientBuffersPerSize,
                          .in_place = gpu_direct_.push ? gpu_direct_.transports
                                                       : std::vector<transport::Transport*>()},
                         environment));
  return absl::OkStatus();
}

absl::Status Attachment::BeginStep(const proto::StepWork& work) {
  SHOAL_RETURN_IF_ERROR(client_->BeginStep(work.step(), work.attempt(), work.generation()));
  barriers_->BeginStep();
  if (exchanges()) {
    context_.time_kinds->Enter(TimeKind::kLayerWait);
    SHOAL_RETURN_IF_ERROR(
        exchange_->BeginAttempt({work.step(), work.attempt()}, work.generation()));
    context_.time_kinds->Enter(TimeKind::kData);
  }
  return absl::OkStatus();
}

proto::NextStepRequest::Pushes Attachment::pushes() const {
  if (exchanges()) {
    return proto::NextStepRequest::PUSHES_OF_SHARDS;
  }
  return context_.policy.push == plan::PushPolicy::kStep ? proto::NextStepRequest::PUSHES_OF_STEPS
                                                         : proto::NextStepRequest::PUSHES_OF_PACKS;
}

absl::Status Attachment::FinishPushes() {
  context_.time_kinds->AtUnit(-1);
  SHOAL_RETURN_IF_ERROR(sink_->Flush());
  SHOAL_RETURN_IF_ERROR(barriers_->BeforePush());  // the last one: collectives end for all together
  context_.time_kinds->Enter(TimeKind::kPushWait);
  return client_->Finish(kFinishTimeout).status();
}

absl::Status Attachment::EndStep(absl::Status how) {
  if (exchanges()) {
    exchange_->EndAttempt(how);  // first: the device may be waiting for other workers
  }
  if (!how.ok() && options_.compute != nullptr) {
    options_.compute->Synchronize().IgnoreError();  // the next attempt starts clean
  }
  for (const absl::Status& ended : {source_->EndStep(), sink_->EndStep()}) {
    how = how.ok() ? ended : how;
  }
  return how;
}

void Attachment::Cancel(const absl::Status& why) {
  client_->Cancel(why);
  source_->Cancel(why);
  sink_->Cancel(why);
  if (exchange_ != nullptr) {
    exchange_->Cancel(why);
  }
}

void Attachment::AddConnections(proto::FinishedReport& report) const {
  const std::vector<client::ClientStatistics::Connection> connections =
      client_->statistics().connections;
  for (size_t server = 0; server < connections.size(); ++server) {
    proto::DataConnection& message = *report.add_connections();
    message.set_peer(fmt::format("server-{}", server));
    message.set_transport(connections[server].transport);
    if (connections[server].transport != context_.job.service.transports.front()) {
      std::vector<std::string> reasons =
          options_.transports->unavailable;  // transports that were not offered
      if (!connections[server].reason.empty()) {
        reasons.push_back(connections[server].reason);
      }
      message.set_reason(fmt::format("{}", fmt::join(reasons, "; ")));
    }
  }
}

void Attachment::UpdateMetrics(int64_t fallbacks) const {
  client::ClientStatistics statistics = client_->statistics();
  statistics.fallbacks += fallbacks;
  context_.metrics->Update(*context_.time_kinds, statistics);
  if (options_.device != nullptr) {
    context_.metrics->UpdateDevice(statistics, gpu_direct_.get, gpu_direct_.push);
    context_.metrics->OnDeviceMemory(options_.device->allocated_bytes(),
                                     options_.device->peak_bytes(),
                                     options_.device->budget_bytes());
  }
  if (exchanges()) {
    context_.metrics->UpdateExchange(exchange_->statistics());
  }
}

}  // namespace shoal::worker
