#include "worker/exchange/collective_source.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "worker/exchange/step_access.h"

namespace shoal::worker {

absl::StatusOr<std::unique_ptr<CollectiveSource>> CollectiveSource::Create(
    const Options& options, const std::vector<plan::UnitSpec>& units,
    const plan::WorkerShards& shards, Device* device, Stream* compute,
    client::ParameterClient* client, LayerExchange* exchange, LayerBarriers* barriers,
    TimeKindClock* time_kinds) {
  std::unique_ptr<CollectiveSource> source(new CollectiveSource(
      options, units, shards, device, compute, client, exchange, barriers, time_kinds));
  SHOAL_RETURN_IF_ERROR(source->MakeBuffers(*device));
  return source;
}

CollectiveSource::CollectiveSource(const Options& options, const std::vector<plan::UnitSpec>& units,
                                   const plan::WorkerShards& shards, Device* device,
                                   Stream* compute, client::ParameterClient* client,
                                   LayerExchange* exchange, LayerBarriers* barriers,
                                   TimeKindClock* time_kinds)
    : options_(options),
      specs_(units),
      shards_(shards),
      compute_(compute),
      client_(client),
      exchange_(exchange),
      time_kinds_(time_kinds),
      inward_(device->NewStream(StreamKind::kCopy)),
      uses_(options.uses, barriers),
      units_(units.size()) {
  SHOAL_CHECK(!barriers->on());
}

absl::Status CollectiveSource::MakeBuffers(Device& device) {
  std::vector<int64_t> padded;
  int64_t bytes = 0;
  for (const plan::UnitSpec& unit : specs_) {
    padded.push_back(shards_.padded(unit.index));
    bytes += shards_.of(unit.index).elements * element();
  }
  const int per_size =
      options_.uses.keep_for_step ? static_cast<int>(specs_.size()) : options_.buffers_per_size;
  SHOAL_ASSIGN_OR_RETURN(
      buffers_,
      DeviceBuffers::Create(client::BufferSizes(padded, options_.compute_type, per_size), device));
  SHOAL_ASSIGN_OR_RETURN(shard_memory_, device.Allocate(bytes));
  inward_->Zero(shard_memory_.data(), bytes);
  std::byte* next = shard_memory_.data();
  for (const plan::UnitSpec& unit : specs_) {
    at(unit.index).shard = next;
    next += shards_.of(unit.index).elements * element();
  }
  return inward_->Synchronize();
}

void CollectiveSource::BeginStep(std::span<const int> uses) {
  error_ = lasting_.Get();
  for (const int unit : uses) {
    if (!at(unit).prefetched && shards_.of(unit).own.count > 0) {
      at(unit).prefetched = client_->Prefetch(unit);
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
  const TimeKindClock::Scope wait(*time_kinds_, TimeKind::kGetWait);
  const absl::StatusOr<client::ParameterClient::View> view = client_->Get(index);
  if (std::exchange(unit.prefetched, false)) {
    client_->Release(index);  // the prefetch's use; Get took one of its own
  }
  SHOAL_RETURN_IF_ERROR(view.status());
  inward_->Copy(
      unit.shard,
      static_cast<const std::byte*>(view->data) + (shard.own.first - shard.whole.first) * element(),
      shard.own.count * element());
  unit.copied = inward_->Record();
  client_->Release(index);  // it stays for the step
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
  time_kinds_->AtUnit(unit);
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
  compute_->WaitFor(*at(unit).gathered);
  return WeightsView{.data = at(unit).data,
                     .dtype = options_.compute_type,
                     .count = specs_[static_cast<size_t>(unit)].count};
}

void CollectiveSource::Release(int unit) {
  SHOAL_CHECK(at(unit).uses > 0 && at(unit).data != nullptr);
  if (--at(unit).uses == 0 && !options_.uses.keep_for_step) {
    GiveBack(unit);
  }
}

void CollectiveSource::GiveBack(int unit) {
  buffers_.Release(
      unit, {.data = std::exchange(at(unit).data, nullptr), .free_after = compute_->Record()});
}

absl::Status CollectiveSource::EndStep() {
  for (const plan::UnitSpec& spec : specs_) {
    Unit& unit = at(spec.index);
    if (unit.data != nullptr) {
      GiveBack(spec.index);
    }
    if (unit.prefetched) {
      client_->Release(spec.index);
    }
    unit = {.shard = unit.shard};
  }
  buffers_.FreeAfter(compute_->Record());
  // The client may reuse what is copied from here on.
  return lasting_.Update(
      FinishCopies(*inward_, options_.timeout, "copies of weights to the device"));
}

}  // namespace shoal::worker
