// HostedJob's partitions that come and go while the job trains (server/copy/).
#include <algorithm>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/service/hosted_job.h"

namespace shoal::server {
namespace {

// A connection reaches transport::kMaxExposedRegions, and a job has others besides.
constexpr size_t kMostExtents = 100;

}  // namespace

absl::StatusOr<proto::ReserveReply> HostedJob::Reserve(const proto::ReserveRequest& request) {
  const absl::MutexLock no_handshake(&connect_mutex_);  // which reads what is exposed
  return core_->Reserve(request, [&] { return ReserveExtent(request); });
}

absl::StatusOr<int64_t> HostedJob::ReserveExtent(const proto::ReserveRequest& request) {
  if (job_.service.memory == plan::PartitionMemory::kCuda) {
    return Unimplemented("with service.memory cuda partitions stay where they are");
  }
  std::vector<plan::PartitionSpec> comes;
  for (const int id : request.partitions()) {
    comes.push_back(partitions_[static_cast<size_t>(id)]);
  }
  std::ranges::sort(comes, {}, &plan::PartitionSpec::id);
  const auto twice = std::ranges::adjacent_find(comes, {}, &plan::PartitionSpec::id);
  if (comes.empty() || twice != comes.end()) {
    return InvalidArgument("partitions are to come to this server that are none, or one twice");
  }
  store_->DropArriving();
  FollowExtents();
  if (resident_.size() >= kMostExtents) {
    return ResourceExhausted(
        "what it holds came in {} moves, and connections reach no more; a job that is resumed has "
        "it in one",
        resident_.size());
  }
  const StoreBytes bytes = CountStoreBytes(comes, store_options_);
  SHOAL_RETURN_IF_ERROR(CheckMemory(bytes));
  SHOAL_ASSIGN_OR_RETURN(auto regions, AllocateWeights(bytes.weights));
  SHOAL_ASSIGN_OR_RETURN(
      auto store, Store::Create(units_, comes, store_options_, regions[0]->bytes(), pool_.get(),
                                gpu_.make_state));
  const int number = store_->next_number();
  for (size_t i = 0; i < transports_.size(); ++i) {
    if (regions[i] == nullptr) {
      return ResourceExhausted("{} cannot expose {} more to clients",
                               transports_[i].transport->name(), FormatBytes(bytes.weights));
    }
    transports_[i].weights[number].host = std::move(regions[i]);
  }
  store_->Arrive(std::move(store));
  resident_[number] = bytes;
  metrics_.AddHeld(0, bytes);
  LogInfo("{} reserved for {} partitions that come", FormatBytes(bytes.total()), comes.size());
  return bytes.total();
}

absl::StatusOr<proto::FetchReply> HostedJob::Fetch(const proto::FetchRequest& request) {
  return core_->Fetch(request, [&] { return FetchExtent(request); });
}

absl::Status HostedJob::FetchExtent(const proto::FetchRequest& request) {
  std::map<int, StateGiver> givers;
  for (const proto::PartitionSource& source : request.sources()) {
    const StateGiver giver = {.name = source.address(),
                              .read = options_.connect_server(source.address())};
    for (const int id : source.partitions()) {
      givers[id] = giver;
    }
  }
  Store& arriving = *store_->arriving()->store;
  std::vector<plan::PartitionSpec> comes;
  for (const auto& partition : arriving.partitions()) {
    comes.push_back(partition->spec());
    if (!givers.contains(comes.back().id)) {
      return InvalidArgument("nobody is named who has partition {}", comes.back().id);
    }
  }
  proto::ReadStateRequest wanted;
  wanted.set_job_id(request.job_id());
  wanted.set_run(request_.run());
  wanted.set_version(request.version());
  SHOAL_RETURN_IF_ERROR(arriving.Load(request.version(), FetchedFrom(comes, givers, wanted)));
  LogInfo("{} partitions have come, as of version {}", comes.size(), request.version());
  return absl::OkStatus();
}

absl::StatusOr<proto::ReadStateReply> HostedJob::ReadState(const proto::ReadStateRequest& request) {
  if (request.run() != request_.run()) {
    return FailedPrecondition("state of run {} is wanted, this server has run {}", request.run(),
                              request_.run());
  }
  return core_->ReadState(request);
}

void HostedJob::FollowExtents() {
  const auto here = [this](int number) {
    return (store_->arriving() != nullptr && store_->arriving()->number == number) ||
           std::ranges::any_of(store_->extents(),
                               [number](const auto& extent) { return extent->number == number; });
  };
  std::erase_if(resident_, [&](const auto& extent) {
    if (here(extent.first)) {
      return false;
    }
    for (EnabledTransport& enabled : transports_) {
      enabled.weights.erase(extent.first);
    }
    metrics_.AddHeld(0, extent.second, -1);
    return true;
  });
  const int64_t held = std::ssize(store_->held());
  metrics_.AddHeld(held - std::exchange(counted_partitions_, held), StoreBytes());
}

}  // namespace shoal::server
