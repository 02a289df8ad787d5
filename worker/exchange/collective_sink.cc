#include "worker/exchange/collective_sink.h"

#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker {

absl::StatusOr<std::unique_ptr<CollectiveSink>> CollectiveSink::Create(
    const Options& options, const StepEnvironment& environment, const plan::WorkerShards& shards,
    LayerExchange* exchange) {
  std::unique_ptr<CollectiveSink> sink(new CollectiveSink(options, environment, shards, exchange));
  SHOAL_RETURN_IF_ERROR(sink->MakeBuffers());
  return sink;
}

CollectiveSink::CollectiveSink(const Options& options, const StepEnvironment& environment,
                               const plan::WorkerShards& shards, LayerExchange* exchange)
    : options_(options),
      env_(environment),
      shards_(shards),
      exchange_(exchange),
      outward_(environment.device->NewStream(StreamKind::kCopy)),
      rule_(options.rule),
      units_(environment.units.size()) {}

absl::Status CollectiveSink::MakeBuffers() {
  std::vector<int64_t> padded = rule_.Counts(env_.units);
  int64_t sums = 0;
  int64_t ranges = 0;
  for (const plan::UnitSpec& spec : env_.units) {
    int64_t& count = padded[static_cast<size_t>(spec.index)];
    if (count > 0) {
      count = shards_.padded(spec.index);
      sums += ShardBytes(spec.index);
      ranges += shards_.of(spec.index).whole.count * 4;
    }
  }
  const int per_size =
      options_.rule.push_per_step ? static_cast<int>(env_.units.size()) : options_.buffers_per_size;
  SHOAL_ASSIGN_OR_RETURN(
      accumulators_,
      DeviceBuffers::Create(client::BufferSizes(padded, DType::kF32, per_size), *env_.device));
  SHOAL_ASSIGN_OR_RETURN(sum_memory_, env_.device->Allocate(sums));
  if (ranges > 0) {
    SHOAL_ASSIGN_OR_RETURN(host_memory_, env_.host->Allocate(ranges));
    std::memset(host_memory_.data(), 0, static_cast<size_t>(ranges));
  }
  std::byte* sum = sum_memory_.data();
  std::byte* range = host_memory_.data();
  for (const plan::UnitSpec& spec : env_.units) {
    if (!rule_.Wants(spec.index)) {
      continue;
    }
    const plan::WorkerShards::Unit& shard = shards_.of(spec.index);
    at(spec.index) = {.sum = sum, .host = shard.own.count > 0 ? range : nullptr};
    sum += ShardBytes(spec.index);
    range += shard.whole.count * 4;
  }
  return absl::OkStatus();
}

void CollectiveSink::BeginStep(const PushWork& work) { rule_.BeginStep(work); }

absl::StatusOr<std::span<float>> CollectiveSink::Accumulator(int unit) {
  return AsAccumulator(Gradient(unit), *env_.compute);
}

absl::StatusOr<UnitGradient> CollectiveSink::Gradient(int index) {
  EnterGradient(*env_.time_kinds, index);
  SHOAL_RETURN_IF_ERROR(lasting_.Get());
  Unit& unit = at(index);
  const int64_t bytes = env_.units[static_cast<size_t>(index)].count * 4;
  bool empty = false;
  if (unit.filling == nullptr) {
    const std::optional<DeviceBuffer> buffer = accumulators_.Acquire(index);
    if (!buffer.has_value()) {
      return ResourceExhausted("gradient of {}: all buffers of its size on the device are in use",
                               NameOf(index));
    }
    unit.filling = buffer->data;
    if (buffer->free_after != nullptr) {
      env_.compute->WaitFor(*buffer->free_after);
    }
    empty = unit.summed == nullptr;
    // Contributions write everything except the padding of shards.
    const int64_t kept = empty ? bytes : 0;
    const int64_t all = ShardBytes(index) * shards_.ranks;
    if (kept < all) {
      env_.compute->Zero(unit.filling + kept, all - kept);
    }
    if (!empty) {
      env_.compute->WaitFor(*unit.summed);
      env_.compute->Copy(unit.filling + ShardBytes(index) * shards_.rank, unit.sum,
                         ShardBytes(index));
    }
  }
  return UnitGradient{
      .sums = std::span(reinterpret_cast<float*>(unit.filling), static_cast<size_t>(bytes / 4)),
      .empty = empty};
}

absl::Status CollectiveSink::PushRest() {
  for (const plan::UnitSpec& spec : env_.units) {
    if (at(spec.index).filling != nullptr) {
      SHOAL_RETURN_IF_ERROR(Push(spec.index, rule_.OfWork(spec.index)));
    }
  }
  return absl::OkStatus();
}

absl::Status CollectiveSink::Push(int index,
                                  const std::optional<plan::Contribution>& contribution) {
  SHOAL_RETURN_IF_ERROR(lasting_.Get());
  if (!contribution.has_value()) {
    return absl::OkStatus();
  }
  Unit& unit = at(index);
  SHOAL_CHECK(unit.filling != nullptr);
  Stream& stream = exchange_->stream();
  stream.WaitFor(*env_.compute->Record());
  SHOAL_RETURN_IF_ERROR(exchange_->ReduceScatter(unit.filling, unit.sum, shards_.of(index).elements,
                                                 DType::kF32,
                                                 "summing the gradients of " + NameOf(index)));
  unit.summed = stream.Record();
  accumulators_.Release(index,
                        {.data = std::exchange(unit.filling, nullptr), .free_after = unit.summed});
  return absl::OkStatus();
}

absl::Status CollectiveSink::Flush() {
  std::vector<std::pair<int, std::unique_ptr<Event>>> copies;
  for (const plan::UnitSpec& spec : env_.units) {
    const Unit& unit = at(spec.index);
    if (unit.summed == nullptr || unit.host == nullptr) {
      continue;
    }
    const plan::WorkerShards::Unit& shard = shards_.of(spec.index);
    outward_->WaitFor(*unit.summed);
    outward_->Copy(unit.host + (shard.own.first - shard.whole.first) * 4, unit.sum,
                   shard.own.count * 4);
    copies.emplace_back(spec.index, outward_->Record());
  }
  for (const auto& [unit, copied] : copies) {
    SHOAL_RETURN_IF_ERROR(PushShard(unit, *copied));
  }
  return AwaitSums();
}

// Waits even if this worker has no shard of some unit: a sum that fails here is incomplete
// elsewhere.
absl::Status CollectiveSink::AwaitSums() {
  const TimeKindClock::Scope wait(*env_.time_kinds, TimeKind::kLayerWait);
  const std::unique_ptr<Event> summed = exchange_->stream().Record();
  if (!summed->WaitDone(options_.timeout)) {
    return DeadlineExceeded("gradients: not all summed over all workers within {}",
                            absl::FormatDuration(options_.timeout));
  }
  SHOAL_RETURN_IF_ERROR(Annotate(summed->Wait(), "summing gradients over all workers"));
  SHOAL_RETURN_IF_ERROR(lasting_.Get());
  return exchange_->status();
}

absl::Status CollectiveSink::PushShard(int index, Event& copied) {
  env_.time_kinds->AtUnit(index);
  {
    const TimeKindClock::Scope wait(*env_.time_kinds, TimeKind::kLayerWait);
    if (!copied.WaitDone(options_.timeout)) {
      return DeadlineExceeded("gradient of {}: not summed over all workers within {}",
                              NameOf(index), absl::FormatDuration(options_.timeout));
    }
    SHOAL_RETURN_IF_ERROR(Annotate(copied.Wait(), "gradient of " + NameOf(index)));
  }
  SHOAL_RETURN_IF_ERROR(lasting_.Get());
  SHOAL_RETURN_IF_ERROR(exchange_->status());
  const TimeKindClock::Scope wait(*env_.time_kinds, TimeKind::kPushWait);
  // The client reads it until its next BeginStep at the latest.
  return env_.client->PushAsync(index,
                                {reinterpret_cast<const float*>(at(index).host),
                                 static_cast<size_t>(shards_.of(index).whole.count)},
                                rule_.OfWork(index), nullptr);
}

absl::Status CollectiveSink::EndStep() {
  const std::shared_ptr<const Event> now = env_.compute->Record();
  for (const plan::UnitSpec& spec : env_.units) {
    Unit& unit = at(spec.index);
    unit.summed = nullptr;
    if (unit.filling != nullptr) {
      accumulators_.Release(spec.index,
                            {.data = std::exchange(unit.filling, nullptr), .free_after = now});
    }
  }
  accumulators_.FreeAfter(now);  // includes sums: the exchange has ended the attempt
  return lasting_.Update(
      FinishCopies(*outward_, options_.timeout, "copies of gradients from the device"));
}

}  // namespace shoal::worker
