#include "server/store/store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "core/base/bf16.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "xxhash.h"

namespace shoal::server {
namespace {

// All headers lie together at the start. At least one page, even without partitions: a region is
// never empty.
int64_t HeadersBytes(size_t partitions) {
  return RoundUp(
      static_cast<int64_t>(std::max<size_t>(1, partitions) * sizeof(transport::PartitionHeader)),
      transport::kBufferAlignment);
}

// Of the weights of a partition: how many there are, and the size of each.
int64_t Buffers(const plan::PartitionSpec& spec) { return spec.frozen ? 1 : 2; }
int64_t BufferBytes(const plan::PartitionSpec& spec, DType wire_type) {
  return RoundUp(spec.wire_bytes(wire_type), transport::kBufferAlignment);
}

}  // namespace

StoreBytes CountStoreBytes(std::span<const plan::PartitionSpec> held, const StoreOptions& options) {
  StoreBytes bytes;
  bytes.weights = HeadersBytes(held.size());
  for (const plan::PartitionSpec& spec : held) {
    if (options.publishes()) {
      bytes.weights += Buffers(spec) * BufferBytes(spec, options.wire_type);
    }
    bytes.master += StateArrayBytes(spec.trained(), sizeof(float));
    bytes.moments +=
        spec.moment_arrays() * StateArrayBytes(spec.moments.ArrayBytes(spec.trained()), 1);
    bytes.gradients += StateArrayBytes(spec.trained(), options.sum_element());
  }
  return bytes;
}

std::vector<WeightsOffsets> PlaceWeights(std::span<const plan::PartitionSpec> held,
                                         const StoreOptions& options) {
  std::vector<WeightsOffsets> places;
  int64_t wire = HeadersBytes(held.size());
  for (const plan::PartitionSpec& spec : held) {
    const int64_t bytes = BufferBytes(spec, options.wire_type);
    places.push_back(
        {.header = static_cast<int64_t>(places.size() * sizeof(transport::PartitionHeader)),
         .buffers = {wire, wire + (Buffers(spec) - 1) * bytes}});
    wire += Buffers(spec) * bytes;
  }
  return places;
}

absl::StatusOr<std::unique_ptr<Store>> Store::Create(std::span<const plan::UnitSpec> units,
                                                     std::span<const plan::PartitionSpec> held,
                                                     const StoreOptions& options,
                                                     std::span<std::byte> weights, ThreadPool* pool,
                                                     const StateFactory& make_state,
                                                     std::span<const WeightsOffsets> places) {
  const int64_t weights_bytes = CountStoreBytes(held, options).weights;
  std::unique_ptr<Store> store(new Store(options, pool));
  if (!options.publishes()) {
    SHOAL_ASSIGN_OR_RETURN(store->headers_, PageBuffer::Allocate(weights_bytes));
    weights = store->headers_.bytes();
  }
  SHOAL_CHECK(static_cast<int64_t>(weights.size()) >= weights_bytes);
  SHOAL_CHECK(places.empty() || !options.shared_weights);
  StateLayout layout = {
      .options = options, .partitions = {held.begin(), held.end()}, .rules = store->rules_.all()};
  for (plan::PartitionSpec& spec : layout.partitions) {
    const plan::UnitSpec& unit = units[static_cast<size_t>(spec.unit)];
    store->nf4_.push_back(
        spec.nf4_bytes == 0 ? nullptr
                            : std::make_unique<plan::Nf4Partition>(unit, spec.offset, spec.count));
    spec.count = spec.trained();
    layout.updates.push_back(store->rules_.Of(unit, spec));
  }
  SHOAL_ASSIGN_OR_RETURN(store->state_, make_state(layout, pool));
  store->host_weights_ = weights;
  if (options.shared_weights) {
    SHOAL_ASSIGN_OR_RETURN(store->shared_weights_, store->state_->AllocateShared(weights_bytes));
  }
  if (places.empty()) {
    store->AddPartitions(held, PlaceWeights(held, options));
  } else {
    store->AddPartitions(held, places);
  }
  if (!options.shared_weights) {
    absl::MutexLock lock(&store->weights_mutex_);
    store->pinned_weights_ = store->state_->Pin(weights);
    store->keeps_host_weights_ = true;
  }
  return store;
}

void Store::AddPartitions(std::span<const plan::PartitionSpec> held,
                          std::span<const WeightsOffsets> places) {
  SHOAL_CHECK(places.size() == held.size());
  std::byte* const host = host_weights_.data();
  std::byte* const shared = shared_weights_.get();
  const auto at = [&](int64_t offset) {
    return !options_.publishes()
               ? WeightsBuffers()
               : WeightsBuffers{.host = host + offset,
                                .shared = shared == nullptr ? nullptr : shared + offset};
  };
  for (size_t index = 0; index < held.size(); ++index) {
    const plan::PartitionSpec& spec = held[index];
    SHOAL_CHECK(partitions_.empty() || partitions_.back()->spec().id < spec.id);
    const WeightsOffsets& place = places[index];
    const Partition::Memory memory = {
        .header = reinterpret_cast<transport::PartitionHeader*>(host + place.header),
        .wire = {at(place.buffers[0]), at(place.buffers[1])}};
    index_[spec.id] = index;
    partitions_.push_back(std::make_unique<Partition>(spec, place, memory, *state_, index));
  }
}

Partition* Store::Find(int partition) {
  const auto found = index_.find(partition);
  return found == index_.end() ? nullptr : partitions_[found->second].get();
}

absl::Status Store::ForEachPartition(const std::function<absl::Status(size_t)>& work) const {
  absl::Mutex mutex;
  absl::Status failure;
  std::atomic<bool> failed = false;  // whoever gives state and does not answer holds this up once
  pool_->ParallelFor(static_cast<int64_t>(partitions_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end && !failed; ++p) {
      const absl::Status status = work(static_cast<size_t>(p));
      if (!status.ok()) {
        absl::MutexLock lock(&mutex);
        failure.Update(status);
        failed = true;
        return;
      }
    }
  });
  return failure;
}

absl::Status Store::Load(int64_t version, const StoreSource& source) {
  // Taken before the pool's threads work: an update holds weights_mutex_ while it waits for them.
  const bool to_host = [&] {
    absl::MutexLock lock(&weights_mutex_);
    return keeps_host_weights_;
  }();
  base_ = source.base;
  SHOAL_RETURN_IF_ERROR(ForEachPartition([&](size_t p) {
    return Trains(p) ? LoadPartition(p, version, source, to_host) : LoadFrozen(p);
  }));
  version_ = version;
  return absl::OkStatus();
}

absl::Status Store::LoadPartition(size_t index, int64_t version, const StoreSource& source,
                                  bool to_host) {
  Partition& partition = *partitions_[index];
  partition.Clear();
  SHOAL_RETURN_IF_ERROR(partition.Seal());  // Touches the sum's pages.
  if (const WeightsBuffers other = BuffersOf(index, version + 1, to_host); other.host != nullptr) {
    std::memset(other.host, 0,
                static_cast<size_t>(partition.spec().count * SizeOf(options_.wire_type)));
  }
  partition.BeginWrite(version);
  SHOAL_RETURN_IF_ERROR(state_->Load(index, source, BuffersOf(index, version, to_host)));
  partition.EndWrite(version);
  return absl::OkStatus();
}

// On the host too where clients reach it elsewhere: it is written once.
absl::Status Store::LoadFrozen(size_t index) {
  if (!options_.publishes()) {
    return absl::OkStatus();
  }
  Partition& partition = *partitions_[index];
  const WeightsBuffers& weights = partition.memory().wire[0];
  const auto count = static_cast<size_t>(partition.spec().count);
  partition.BeginWrite(0);
  if (nf4_[index] != nullptr) {
    SHOAL_RETURN_IF_ERROR(nf4_[index]->Encode(base_, weights.host));
  } else if (options_.wire_type == DType::kF32) {
    SHOAL_RETURN_IF_ERROR(base_(partition.spec().unit, partition.spec().offset,
                                {reinterpret_cast<float*>(weights.host), count}));
  } else {
    std::vector<float> scratch;
    SHOAL_ASSIGN_OR_RETURN(const std::span<const float> master,
                           Read(index, StateArray::kMaster, scratch));
    Convert(master, reinterpret_cast<BFloat16*>(weights.host));
  }
  if (weights.shared != nullptr) {
    SHOAL_RETURN_IF_ERROR(
        state_->CopyToShared(weights, partition.spec().wire_bytes(options_.wire_type)));
  }
  partition.EndWrite(0);
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Store::Read(size_t partition, StateArray array,
                                                   std::vector<float>& scratch) const {
  const plan::PartitionSpec& spec = partitions_[partition]->spec();
  if (!spec.frozen) {
    return state_->Read(partition, array, scratch);
  }
  scratch.assign(static_cast<size_t>(spec.count), 0.0F);
  if (array == StateArray::kMaster) {
    SHOAL_RETURN_IF_ERROR(base_(spec.unit, spec.offset, scratch));
  }
  return std::span<const float>(scratch);
}

absl::Status Store::LoadGradient(const plan::UnitReader& gradient) {
  return ForEachPartition([&](size_t p) {
    const int64_t taken = Trains(p) ? partitions_[p]->taken() : 0;
    return Trains(p) && taken < partitions_[p]->spec().count
               ? state_->LoadGradient(p, taken, gradient)
               : absl::OkStatus();
  });
}

void Store::Drop(size_t partition) {
  index_.erase(partitions_[partition]->spec().id);
  partitions_[partition].reset();
  state_->Drop(partition);
}

void Store::Clear(std::span<const int64_t> unit_pushes) {
  for (const auto& partition : partitions_) {
    if (partition != nullptr) {
      const auto unit = static_cast<size_t>(partition->spec().unit);
      partition->Clear(unit < unit_pushes.size() ? unit_pushes[unit] : 0);
    }
  }
}

absl::StatusOr<std::vector<PartitionStatistics>> Store::Seal() {
  for (size_t p = 0; p < partitions_.size(); ++p) {
    SHOAL_RETURN_IF_ERROR(Trains(p) ? partitions_[p]->Seal() : absl::OkStatus());
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<GradientStatistics> gradients, state_->Statistics());
  std::vector<PartitionStatistics> statistics;
  for (size_t p = 0; p < partitions_.size(); ++p) {
    if (Trains(p)) {
      statistics.push_back({.partition = partitions_[p]->spec().id,
                            .gradient = gradients[p],
                            .pushes = partitions_[p]->pushes()});
    }
  }
  return statistics;
}

WeightsBuffers Store::BuffersOf(size_t partition, int64_t version, bool to_host) const {
  WeightsBuffers buffers = partitions_[partition]->memory().wire[version % 2];
  if (!to_host) {
    buffers.host = nullptr;
  }
  return buffers;
}

absl::Status Store::KeepHostWeights() {
  absl::MutexLock lock(&weights_mutex_);
  if (keeps_host_weights_) {
    return absl::OkStatus();
  }
  if (pinned_weights_ == nullptr) {  // not left from an earlier try
    pinned_weights_ = state_->Pin(host_weights_);
  }
  // Copies both versions: what a Commit in progress has enqueued is copied after it, the rest will
  // come.
  for (size_t p = 0; p < partitions_.size(); ++p) {
    if (!Trains(p)) {
      continue;
    }
    for (const WeightsBuffers& weights : partitions_[p]->memory().wire) {
      SHOAL_RETURN_IF_ERROR(state_->CopyToHost(p, weights));
    }
  }
  keeps_host_weights_ = true;
  return absl::OkStatus();
}

absl::Status Store::UpdateSome(size_t first, size_t last, int64_t step,
                               std::span<const UpdateScalars> scalars) {
  absl::MutexLock lock(&weights_mutex_);
  std::vector<WeightsBuffers> weights;
  for (size_t p = first; p < last; ++p) {
    weights.push_back(BuffersOf(p, step, keeps_host_weights_));
  }
  return state_->Update(first, last, scalars, weights);
}

// Past the last of those from `first` on, none of which was dropped.
size_t Store::EndOfRun(size_t first) const {
  size_t end = first;
  while (end < partitions_.size() && partitions_[end] != nullptr) {
    ++end;
  }
  return end;
}

absl::Status Store::Update(int64_t step, std::span<const UpdateScalars> scalars,
                           const Ready& ready) {
  for (size_t p = 0; p < partitions_.size(); ++p) {
    const size_t end = ready && partitions_[p] != nullptr ? p + 1 : EndOfRun(p);
    if (end == p) {
      continue;  // dropped
    }
    if (ready && Trains(p)) {
      SHOAL_RETURN_IF_ERROR(ready(p));
    }
    SHOAL_RETURN_IF_ERROR(UpdateSome(p, end, step, scalars));
    p = end - 1;
  }
  absl::MutexLock lock(&weights_mutex_);
  return state_->Finish();
}

std::vector<UpdateScalars> Store::ScalarsOf(int64_t step, double learning_rate,
                                            double clip_coefficient) const {
  std::vector<UpdateScalars> scalars;
  for (const UpdateRule& rule : rules_.all()) {
    OptimizerOptions options = options_.optimizer;
    options.weight_decay = rule.weight_decay;
    scalars.push_back(MakeUpdateScalars(options, step, learning_rate * rule.learning_rate_scale,
                                        clip_coefficient));
  }
  return scalars;
}

absl::Status Store::Commit(int64_t step, double learning_rate, double clip_coefficient,
                           const Ready& ready) {
  return Publish(step, ScalarsOf(step, learning_rate, clip_coefficient), ready);
}

absl::Status Store::Skip(int64_t step, const Ready& ready) {
  for (size_t p = 0; p < partitions_.size(); ++p) {
    SHOAL_RETURN_IF_ERROR(state_->Clear(p));  // what is not finite would be so times zero
  }
  // An optimizer whose every factor is one and whose every addend is zero.
  const UpdateScalars keeping = {.beta2 = 1, .epsilon = 1};
  return Publish(step, std::vector<UpdateScalars>(rules_.all().size(), keeping), ready);
}

absl::Status Store::Publish(int64_t step, std::span<const UpdateScalars> scalars,
                            const Ready& ready) {
  SHOAL_CHECK(step == version_ + 1 || SHOAL_PLANTED("commit-twice"));
  for (size_t p = 0; p < partitions_.size(); ++p) {
    if (Trains(p)) {
      partitions_[p]->BeginWrite(step);
    }
  }
  failure_ = Update(step, scalars, ready);
  SHOAL_RETURN_IF_ERROR(failure_);
  for (size_t p = 0; p < partitions_.size(); ++p) {
    if (Trains(p)) {
      partitions_[p]->EndWrite(step);
    }
  }
  version_ = step;
  return absl::OkStatus();
}

uint64_t Store::HashOfFrozen(size_t partition) const {
  const plan::PartitionSpec& spec = partitions_[partition]->spec();
  const auto count = static_cast<size_t>(spec.count);
  const std::byte* const weights = partitions_[partition]->memory().wire[0].host;
  if (nf4_[partition] != nullptr || options_.wire_type == DType::kF32) {
    return XXH3_64bits(weights, static_cast<size_t>(spec.wire_bytes(options_.wire_type)));
  }
  std::vector<float> wide(count);
  Convert(std::span(reinterpret_cast<const BFloat16*>(weights), count), wide.data());
  return XXH3_64bits(wide.data(), count * sizeof(float));
}

absl::StatusOr<std::vector<PartitionChecksum>> Store::Checksums() const {
  SHOAL_RETURN_IF_ERROR(failure_);
  std::vector<PartitionChecksum> checksums(partitions_.size(), {.partition = -1});
  SHOAL_RETURN_IF_ERROR(ForEachPartition([&](size_t p) -> absl::Status {
    if (partitions_[p] == nullptr) {
      return absl::OkStatus();
    }
    if (!Trains(p)) {
      if (options_.publishes()) {
        checksums[p] = {.partition = partitions_[p]->spec().id, .hash = HashOfFrozen(p)};
      }
      return absl::OkStatus();
    }
    std::vector<float> scratch;
    SHOAL_ASSIGN_OR_RETURN(const std::span<const float> master,
                           state_->Read(p, StateArray::kMaster, scratch));
    checksums[p] = {.partition = partitions_[p]->spec().id,
                    .hash = XXH3_64bits(master.data(), master.size_bytes())};
    return absl::OkStatus();
  }));
  std::erase_if(checksums, [](const PartitionChecksum& none) { return none.partition < 0; });
  return checksums;
}

}  // namespace shoal::server
