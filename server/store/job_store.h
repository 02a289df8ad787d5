// All partitions of a job that one server holds: extents (store.h), each with memory of its own, of
// which one comes with the partitions that the server gets together and goes with the last of them.
//
// Operations of a step run over all of them. One extent may be arriving: its state is being
// fetched, and it takes part in nothing until Keep says that the server holds it.
//
// Its owner sequences the calls, as of Store. Find may be called while Add, Arrive and the arriving
// extent's Load run; all else not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace shoal::server {

class JobStore {
 public:
  struct Extent {
    int number = 0;  // never given twice
    std::unique_ptr<Store> store;
  };
  struct Held {
    Partition* partition = nullptr;
    const Extent* extent = nullptr;
    size_t index = 0;  // in the extent's store
  };

  // `first` is loaded; it may have no partitions.
  explicit JobStore(std::unique_ptr<Store> first);

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
  void Clear();
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

  // The number of what arrives next.
  int next_number() const { return next_number_; }
  // What is to come, in place of what was to.
  void Arrive(std::unique_ptr<Store> store);
  const Extent* arriving() const { return arriving_.get(); }
  void DropArriving() { arriving_.reset(); }
  // Whether these are all held, or loaded and arriving.
  bool Has(const std::set<int>& partitions) const;
  // Holds these from now on, all of which it has; the rest goes. A server that held nothing takes
  // `version`.
  void Keep(const std::set<int>& partitions, int64_t version);

 private:
  void Index();
  absl::Status Publish(int64_t step, const Store::Ready& ready,
                       const std::function<absl::Status(Store&, const Store::Ready&)>& publish);

  std::vector<std::unique_ptr<Extent>> extents_;
  std::unique_ptr<Extent> arriving_;
  int next_number_ = 0;
  int64_t version_ = 0;
  absl::Status failure_;
  std::vector<Held> held_;
  absl::flat_hash_map<int, size_t> index_;  // in held_, by partition id
};

}  // namespace shoal::server
