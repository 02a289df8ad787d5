#include "server/store/job_store.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"

namespace shoal::server {

JobStore::JobStore(std::unique_ptr<Store> first, int first_region)
    : next_region_(first_region), version_(first->version()) {
  extents_.push_back(std::make_unique<Extent>(Extent{Reserve({}), std::move(first)}));
  reserved_ = -1;
  Index();
}

void JobStore::Index() {
  held_.clear();
  for (const auto& extent : extents_) {
    const auto partitions = extent->store->partitions();
    for (size_t index = 0; index < partitions.size(); ++index) {
      if (partitions[index] != nullptr) {
        held_.push_back({partitions[index].get(), extent.get(), index});
      }
    }
  }
  std::ranges::sort(held_, {}, [](const Held& held) { return held.partition->spec().id; });
  index_.clear();
  for (size_t index = 0; index < held_.size(); ++index) {
    index_[held_[index].partition->spec().id] = index;
  }
}

const JobStore::Held* JobStore::FindHeld(int partition) const {
  const auto found = index_.find(partition);
  return found == index_.end() ? nullptr : &held_[found->second];
}

Partition* JobStore::Find(int partition) const {
  const Held* const held = FindHeld(partition);
  return held == nullptr ? nullptr : held->partition;
}

absl::Status JobStore::KeepHostWeights() {
  for (const auto& extent : extents_) {
    SHOAL_RETURN_IF_ERROR(extent->store->KeepHostWeights());
  }
  return absl::OkStatus();
}

void JobStore::Clear(std::span<const int64_t> unit_pushes) {
  for (const auto& extent : extents_) {
    extent->store->Clear(unit_pushes);
  }
}

absl::StatusOr<std::vector<PartitionStatistics>> JobStore::Seal() {
  std::vector<PartitionStatistics> all;
  for (const auto& extent : extents_) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<PartitionStatistics> some, extent->store->Seal());
    all.insert(all.end(), some.begin(), some.end());
  }
  std::ranges::sort(all, {}, &PartitionStatistics::partition);
  return all;
}

absl::Status JobStore::Commit(int64_t step, double learning_rate, double clip_coefficient,
                              const Store::Ready& ready) {
  return Publish(step, ready, [&](Store& store, const Store::Ready& of_extent) {
    return store.Commit(step, learning_rate, clip_coefficient, of_extent);
  });
}

absl::Status JobStore::Skip(int64_t step, const Store::Ready& ready) {
  return Publish(step, ready, [step](Store& store, const Store::Ready& of_extent) {
    return store.Skip(step, of_extent);
  });
}

absl::Status JobStore::Publish(
    int64_t step, const Store::Ready& ready,
    const std::function<absl::Status(Store&, const Store::Ready&)>& publish) {
  SHOAL_CHECK(step == version_ + 1 || SHOAL_PLANTED("commit-twice"));
  for (const auto& extent : extents_) {
    Store::Ready of_extent;
    if (ready) {
      of_extent = [&](size_t index) {
        const int id = extent->store->partitions()[index]->spec().id;
        return ready(index_.at(id));
      };
    }
    failure_ = publish(*extent->store, of_extent);
    SHOAL_RETURN_IF_ERROR(failure_);
  }
  version_ = step;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PartitionChecksum>> JobStore::Checksums() const {
  std::vector<PartitionChecksum> all;
  for (const auto& extent : extents_) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<PartitionChecksum> some, extent->store->Checksums());
    all.insert(all.end(), some.begin(), some.end());
  }
  std::ranges::sort(all, {}, &PartitionChecksum::partition);
  return all;
}

absl::StatusOr<std::span<const float>> JobStore::Read(size_t index, StateArray array,
                                                      std::vector<float>& scratch) const {
  const Held& held = held_[index];
  return held.extent->store->Read(held.index, array, scratch);
}

absl::Status JobStore::LoadGradient(const plan::UnitReader& gradient) {
  for (const auto& extent : extents_) {
    SHOAL_RETURN_IF_ERROR(extent->store->LoadGradient(gradient));
  }
  return absl::OkStatus();
}

JobStore::Regions JobStore::regions() const {
  absl::MutexLock lock(&regions_mutex_);
  return regions_;
}

bool JobStore::HasRegion(int number) const {
  absl::MutexLock lock(&regions_mutex_);
  return regions_.contains(number);
}

JobStore::Places JobStore::places(int region) const {
  absl::MutexLock lock(&regions_mutex_);
  return regions_.at(region);
}

int JobStore::FindReserved(const Places& places) const {
  absl::MutexLock lock(&regions_mutex_);
  const auto found = std::ranges::find_if(regions_, [&places](const auto& region) {
    return !places.empty() && std::ranges::all_of(places, [&region](const auto& place) {
      return region.second.contains(place.first);
    });
  });
  return found == regions_.end() ? -1 : found->first;
}

int JobStore::Reserve(const Places& places) {
  DropArriving();
  reserved_ = FindReserved(places);
  if (reserved_ < 0) {
    absl::MutexLock lock(&regions_mutex_);
    for (auto& [number, others] : regions_) {
      std::erase_if(others, [&places](const auto& place) { return places.contains(place.first); });
    }
    reserved_ = next_region_++;
    regions_[reserved_] = places;
  }
  return reserved_;
}

JobStore::Places PlacesOf(std::span<const plan::PartitionSpec> partitions,
                          const StoreOptions& options) {
  const std::vector<WeightsOffsets> all = PlaceWeights(partitions, options);
  JobStore::Places places;
  for (size_t i = 0; i < partitions.size(); ++i) {
    places[partitions[i].id] = all[i];
  }
  return places;
}

void JobStore::Arrive(std::unique_ptr<Store> store) {
  const int region = reserved_ >= 0 ? reserved_ : Reserve({});
  arriving_ = std::make_unique<Extent>(Extent{region, std::move(store)});
}

void JobStore::DropArriving() {
  arriving_.reset();
  reserved_ = -1;
  DropRegions();
}

void JobStore::DropRegions() {
  absl::MutexLock lock(&regions_mutex_);
  std::erase_if(regions_, [this](const auto& region) {
    return region.first != reserved_ &&
           std::ranges::none_of(extents_, [number = region.first](const auto& extent) {
             return extent->region == number;
           });
  });
}

bool JobStore::Has(const std::set<int>& partitions) const {
  return std::ranges::all_of(partitions, [this](int id) {
    const bool comes = arriving_ != nullptr && arriving_->store->version() >= 0 &&
                       arriving_->store->Find(id) != nullptr;
    return comes || Find(id) != nullptr;
  });
}

void JobStore::Keep(const std::set<int>& partitions, int64_t version) {
  SHOAL_CHECK(Has(partitions));
  if (held_.empty()) {
    version_ = version;
  }
  if (arriving_ != nullptr && arriving_->store->version() >= 0) {
    extents_.push_back(std::move(arriving_));
  }
  arriving_.reset();
  reserved_ = -1;
  for (const auto& extent : extents_) {
    Store& store = *extent->store;
    for (size_t index = 0; index < store.partitions().size(); ++index) {
      if (const auto& partition = store.partitions()[index];
          partition != nullptr && !partitions.contains(partition->spec().id)) {
        {
          absl::MutexLock lock(&regions_mutex_);
          regions_.at(extent->region).erase(partition->spec().id);
        }
        store.Drop(index);
      }
    }
  }
  std::erase_if(extents_, [](const auto& extent) {
    return !SHOAL_PLANTED("extent-kept") &&
           std::ranges::all_of(extent->store->partitions(),
                               [](const auto& partition) { return partition == nullptr; });
  });
  DropRegions();
  Index();
}

}  // namespace shoal::server
