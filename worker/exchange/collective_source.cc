#include "worker/exchange/collective_source.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker {

absl::StatusOr<std::unique_ptr<CollectiveSource>> CollectiveSource::Create(
    const Options& options, const StepEnvironment& environment, const plan::WorkerShards& shards,
    LayerExchange* exchange) {
  std::unique_ptr<CollectiveSource> source(
      new CollectiveSource(options, environment, shards, exchange));
  SHOAL_RETURN_IF_ERROR(source->MakeBuffers());
  return source;
}

CollectiveSource::CollectiveSource(const Options& options, const StepEnvironment& environment,
                                   const plan::WorkerShards& shards, LayerExchange* exchange)
    : options_(options),
      env_(environment),
      shards_(shards),
      exchange_(exchange),
      inward_(environment.device->NewStream(StreamKind::kCopy)),
      uses_(options.uses, environment.barriers),
      units_(environment.units.size()) {
  SHOAL_CHECK(!env_.barriers->on());
}

absl::Status CollectiveSource::MakeBuffers() {
  std::vector<int64_t> padded;
  int64_t bytes = 0;
  for (const plan::UnitSpec& unit : env_.units) {
    padded.push_back(shards_.padded(unit.index));
    bytes += shards_.of(unit.index).elements * element();
  }
  const int per_size =
      options_.uses.keep_for_step ? static_cast<int>(env_.units.size()) : options_.buffers_per_size;
  SHOAL_ASSIGN_OR_RETURN(
      buffers_, DeviceBuffers::Create(client::BufferSizes(padded, options_.compute_type, per_size),
                                      *env_.device));
  SHOAL_ASSIGN_OR_RETURN(shard_memory_, env_.device->Allocate(bytes));
  inward_->Zero(shard_memory_.data(), bytes);
  std::byte* next = shard_memory_.data();
  for (const plan::UnitSpec& unit : env_.units) {
    at(unit.index).shard = next;
    next += shards_.of(unit.index).elements * element();
  }
  return inward_->Synchronize();
}

void CollectiveSource::BeginStep(std::span<const int> uses) {
  error_ = lasting_.Get();
  for (const int unit : uses) {
    if (!at(unit).prefetched && shards_.of(unit).own.count > 0) {
      at(unit).prefetched = env_.client->Prefetch(unit);
    }
  }
  started_ = 0;
  uses_.BeginStep(uses);
  if (error_.ok()) {
    error_ = StartDue();
  }
}

absl::Status CollectiveSource::StartDue() {
  for (; started_ < uses_.due(); ++started_) {
    const int unit = uses_.unit(started_);
    if (at(unit).data == nullptr) {
      const std::optional<DeviceBuffer> buffer = buffers_.Acquire(unit);
      if (!buffer.has_value()) {
        return absl::OkStatus();
      }
      at(unit).data = buffer->data;
      SHOAL_RETURN_IF_ERROR(Gather(unit, *buffer));
    }
    ++at(unit).uses;
  }
  return absl::OkStatus();
}

absl::Status CollectiveSource::TakeShard(int index) {
  Unit& unit = at(index);
  const plan::WorkerShards::Unit& shard = shards_.of(index);
  unit.has_shard = true;
  if (shard.own.count == 0) {
    return absl::OkStatus();
  }
  const TimeKindClock::Scope wait(*env_.time_kinds, TimeKind::kGetWait);
  const absl::StatusOr<client::ParameterClient::View> view = env_.client->Get(index);
  if (std::exchange(unit.prefetched, false)) {
    env_.client->Release(index);  // the prefetch's use; Get took its own
  }
  SHOAL_RETURN_IF_ERROR(view.status());
  env_.time_kinds->WaitedFor(view->last_server);
  inward_->Copy(
      unit.shard,
      static_cast<const std::byte*>(view->data) + (shard.own.first - shard.whole.first) * element(),
      shard.own.count * element());
  unit.copied = inward_->Record();
  env_.client->Release(index);  // the client keeps it for the step
  return absl::OkStatus();
}

absl::Status CollectiveSource::Gather(int index, const DeviceBuffer& buffer) {
  Unit& unit = at(index);
  if (!unit.has_shard) {
    SHOAL_RETURN_IF_ERROR(TakeShard(index));
  }
  Stream& stream = exchange_->stream();
  if (unit.copied != nullptr) {
    stream.WaitFor(*unit.copied);
  }
  if (buffer.free_after != nullptr) {
    stream.WaitFor(*buffer.free_after);
  }
  SHOAL_RETURN_IF_ERROR(exchange_->AllGather(unit.shard, unit.data, shards_.of(index).elements,
                                             options_.compute_type,
                                             "gathering the weights of " + NameOf(index)));
  unit.gathered = stream.Record();
  return absl::OkStatus();
}

absl::StatusOr<WeightsView> CollectiveSource::Get(int unit) {
  env_.time_kinds->AtUnit(unit);
  if (!uses_.Expects(unit)) {
    return Internal("get {}: the step's order of use has {} here", NameOf(unit),
                    uses_.next() < uses_.count() ? NameOf(uses_.unit(uses_.next())) : "its end");
  }
  uses_.Advance();
  if (error_.ok()) {
    error_ = StartDue();
  }
  error_.Update(lasting_.Get());
  error_.Update(exchange_->status());
  SHOAL_RETURN_IF_ERROR(error_);
  if (started_ < uses_.next()) {
    return ResourceExhausted("get {}: all buffers of its size on the device are in use",
                             NameOf(unit));
  }
  env_.compute->WaitFor(*at(unit).gathered);
  return WeightsView{.data = at(unit).data,
                     .dtype = options_.compute_type,
                     .count = env_.units[static_cast<size_t>(unit)].count};
}

void CollectiveSource::Release(int unit) {
  SHOAL_CHECK(at(unit).uses > 0 && at(unit).data != nullptr);
  if (--at(unit).uses == 0 && !options_.uses.keep_for_step) {
    GiveBack(unit);
  }
}

void CollectiveSource::GiveBack(int unit) {
  buffers_.Release(
      unit, {.data = std::exchange(at(unit).data, nullptr), .free_after = env_.compute->Record()});
}

absl::Status CollectiveSource::EndStep() {
  for (const plan::UnitSpec& spec : env_.units) {
    Unit& unit = at(spec.index);
    if (unit.data != nullptr) {
      GiveBack(spec.index);
    }
    if (unit.prefetched) {
      env_.client->Release(spec.index);
    }
    unit = {.shard = unit.shard};
  }
  buffers_.FreeAfter(env_.compute->Record());
  // The client may reuse copied buffers from here on.
  return lasting_.Update(
      FinishCopies(*inward_, options_.timeout, "copies of weights to the device"));
}

}  // namespace shoal::worker
