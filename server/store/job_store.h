// All partitions of a job that one server holds: extents (store.h), each with memory of its own, of
// which one comes with the partitions that the server gets together and goes with the last of them.
//
// Weights of an extent lie in a region that clients reach. What a server is to get together or one
// after the other is reserved in one region, so that clients reach it all from its first extent on.
// It goes with the last of its extents.
//
// Operations of a step run over all of them. One extent may be arriving: its state is being
// fetched, and it takes part in nothing until Keep says that the server holds it.
//
// Its owner sequences the calls, as of Store. Find may be called while Arrive and the arriving
// extent's Load run, regions() at any time; all else not.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/store/store.h"

namespace shoal::server {

// The number of the first region of backups: those of primaries have lower ones.
inline constexpr int kFirstBackupRegion = 1 << 20;

class JobStore {
 public:
  struct Extent {
    int region = 0;
    std::unique_ptr<Store> store;
  };
  using Places = std::map<int, WeightsOffsets>;  // by partition id
  using Regions = std::map<int, Places>;         // by number
  struct Held {
    Partition* partition = nullptr;
    const Extent* extent = nullptr;
    size_t index = 0;  // in the extent's store
  };

  // `first` is loaded; it may have no partitions. Regions are numbered from `first_region` on.
  explicit JobStore(std::unique_ptr<Store> first, int first_region = 0);

  // Of all extents but the one that arrives.
  std::span<const std::unique_ptr<Extent>> extents() const { return extents_; }
  const std::vector<Held>& held() const { return held_; }  // by id, ascending
  Partition* Find(int partition) const;
  const Held* FindHeld(int partition) const;
  int64_t version() const { return version_; }
  // Not OK once a Commit has failed.
  const absl::Status& failure() const { return failure_; }
  // As Store has them.
  absl::Status KeepHostWeights();
  void Clear(std::span<const int64_t> unit_pushes = {});
  absl::StatusOr<std::vector<PartitionStatistics>> Seal();
  // `ready` has indices in held().
  absl::Status Commit(int64_t step, double learning_rate, double clip_coefficient,
                      const Store::Ready& ready = nullptr);
  absl::Status Skip(int64_t step, const Store::Ready& ready = nullptr);
  absl::StatusOr<std::vector<PartitionChecksum>> Checksums() const;
  // As Store has it.
  absl::Status LoadGradient(const plan::UnitReader& gradient);
  absl::StatusOr<std::span<const float>> Read(size_t index, StateArray array,
                                              std::vector<float>& scratch) const;

  // The regions that are there, those of extents and the reserved one; no number is given twice.
  // Each with the places of partitions that were reserved and have not gone, here yet or not.
  Regions regions() const ABSL_LOCKS_EXCLUDED(regions_mutex_);
  bool HasRegion(int number) const ABSL_LOCKS_EXCLUDED(regions_mutex_);
  Places places(int region) const ABSL_LOCKS_EXCLUDED(regions_mutex_);
  // The region that has places for all of these; -1: none has.
  int FindReserved(const Places& places) const ABSL_LOCKS_EXCLUDED(regions_mutex_);
  // The next that arrives has places in that region, or in a new one, where none has all of these,
  // which then have no other place: returns its number. Whatever was to arrive does not.
  int Reserve(const Places& places);
  // For what arrives next; -1: none.
  int reserved() const { return reserved_; }
  // What is to come, in the reserved region, or in one of its own; in place of what was to.
  void Arrive(std::unique_ptr<Store> store);
  const Extent* arriving() const { return arriving_.get(); }
  void DropArriving();
  // Whether these are all held, or loaded and arriving.
  bool Has(const std::set<int>& partitions) const;
  // Holds these from now on, all of which it has; the rest goes. A server that held nothing takes
  // `version`.
  void Keep(const std::set<int>& partitions, int64_t version);

 private:
  void Index();
  // Without extents and not reserved.
  void DropRegions();
  absl::Status Publish(int64_t step, const Store::Ready& ready,
                       const std::function<absl::Status(Store&, const Store::Ready&)>& publish);

  std::vector<std::unique_ptr<Extent>> extents_;
  std::unique_ptr<Extent> arriving_;
  mutable absl::Mutex regions_mutex_;
  Regions regions_ ABSL_GUARDED_BY(regions_mutex_);
  int reserved_ = -1;
  int next_region_;
  int64_t version_ = 0;
  absl::Status failure_;
  std::vector<Held> held_;
  absl::flat_hash_map<int, size_t> index_;  // in held_, by partition id
};

// By partition id, as PlaceWeights has them.
JobStore::Places PlacesOf(std::span<const plan::PartitionSpec> partitions,
                          const StoreOptions& options);

}  // namespace shoal::server
