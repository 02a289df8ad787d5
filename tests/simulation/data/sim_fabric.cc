#include "tests/simulation/data/sim_fabric.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/status.h"
#include "core/transport/expected_handshakes.h"
#include "core/transport/handshake.h"
#include "core/transport/region_table.h"
#include "tests/simulation/data/sim_link.h"

namespace shoal::simulation {
namespace {

constexpr std::string_view kName = "simulated";

class PagesRegion final : public transport::RegisteredRegion {
 public:
  PagesRegion(std::shared_ptr<transport::RegionTable> table, std::shared_ptr<std::byte> memory,
              size_t bytes, transport::Access access)
      : RegisteredRegion(std::move(table), {memory.get(), bytes}, access),
        memory_(std::move(memory)) {}

 private:
  const std::shared_ptr<std::byte> memory_;
};

class SimConnection final : public transport::Connection {
 public:
  SimConnection(std::shared_ptr<SimLink> link, int side) : link_(std::move(link)), side_(side) {}
  ~SimConnection() override { link_->Close(side_); }

  uint64_t id() const override { return link_->end(side_).id; }
  const std::string& peer() const override { return link_->end(side_).peer; }
  std::vector<int64_t> remote_region_sizes() const override {
    std::vector<int64_t> sizes;
    for (const transport::RemoteRegion& region : link_->end(side_).reaches) {
      sizes.push_back(region.bytes);
    }
    return sizes;
  }
  absl::Status PostReads(std::span<const transport::ReadOperation> operations) override {
    return link_->PostReads(side_, operations);
  }
  absl::Status PostWrites(std::span<const transport::WriteOperation> operations) override {
    return link_->PostWrites(side_, operations);
  }
  void Close() override { link_->Close(side_); }

 private:
  const std::shared_ptr<SimLink> link_;
  const int side_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<std::byte>> AllocatePages(int64_t bytes) {
  constexpr std::align_val_t kPage{4096};
  const auto size = static_cast<size_t>(bytes);
  auto* const memory = static_cast<std::byte*>(operator new(size, kPage));
  std::memset(memory, 0, size);
  return std::shared_ptr<std::byte>(memory,
                                    [](std::byte* pages) { operator delete(pages, kPage); });
}

class SimTransport final : public transport::Transport {
 public:
  SimTransport(SimFabric& fabric, SimProcess& process, std::function<void()> turn,
               std::function<void()> overlooked)
      : fabric_(fabric),
        process_(process),
        turn_(std::move(turn)),
        overlooked_(std::move(overlooked)) {
    capabilities_.one_sided_reads = true;
    capabilities_.writes_in_order = true;
    capabilities_.exposes_any_memory = true;
  }

  std::string_view name() const override { return kName; }
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<std::unique_ptr<transport::EventQueue>> CreateQueue() override {
    return std::make_unique<SimQueue>(process_, turn_);
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Allocate(int64_t bytes,
                                                              transport::Access access) override {
    if (bytes <= 0) {
      return InvalidArgument("cannot allocate a region of {} bytes", bytes);
    }
    SHOAL_ASSIGN_OR_RETURN(auto memory, AllocatePages(bytes));
    return std::make_shared<PagesRegion>(table_, std::move(memory), static_cast<size_t>(bytes),
                                         access);
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Register(std::span<std::byte> memory,
                                                              transport::Access access) override {
    return transport::RegisteredRegion::Register(table_, memory, access);
  }
  absl::StatusOr<std::unique_ptr<transport::Connector>> Offer(
      const transport::ConnectionOptions& options) override;
  absl::StatusOr<transport::Acceptance> Accept(
      const std::string& offer, const transport::ConnectionOptions& options) override;

 private:
  class SimConnector;
  static std::string AnswerOf(SimLink& link) {
    return transport::SealAnswer(kName, std::to_string(link.end(1).id));
  }
  // Whoever has made these options is that end from then on.
  absl::Status Attach(SimLink& link, int side, const transport::ConnectionOptions& options) {
    SHOAL_RETURN_IF_ERROR(
        (transport::CheckOwnConnectionOptions<SimQueue, transport::RegisteredRegion>(options,
                                                                                     *table_)));
    SimLink::End& end = link.end(side);
    end.process = &process_;
    end.queue = static_cast<SimQueue*>(options.queue);
    end.overlooked = overlooked_;
    end.peer = options.peer;
    end.table = table_;
    end.exposed = options.exposed;
    end.outstanding = std::make_shared<transport::OutstandingOperations>(options.max_outstanding);
    end.id = ++fabric_.next_id_;
    return absl::OkStatus();
  }

  SimFabric& fabric_;
  SimProcess& process_;
  const std::function<void()> turn_;
  const std::function<void()> overlooked_;
  const std::shared_ptr<transport::RegionTable> table_ = std::make_shared<transport::RegionTable>();
  transport::Capabilities capabilities_;
};

class SimTransport::SimConnector final : public transport::Connector {
 public:
  SimConnector(SimFabric& fabric, std::shared_ptr<SimLink> link)
      : fabric_(fabric),
        link_(std::move(link)),
        offer_(transport::SealOffer(kName, std::to_string(link_->end(0).id))) {
    fabric_.offered_[offer_] = link_;
  }
  ~SimConnector() override {
    fabric_.offered_.erase(offer_);
    if (!link_->connected() && link_->end(1).process != nullptr) {
      link_->Forget(0);
    }
  }

  const std::string& offer() const override { return offer_; }
  absl::StatusOr<std::unique_ptr<transport::Connection>> Complete(
      const std::string& answer) override {
    const std::string& peer = link_->end(0).peer;
    if (link_->connected()) {
      return FailedPrecondition("{}: this handshake was completed already", peer);
    }
    if (!link_->end(1).open || answer != AnswerOf(*link_)) {
      return Unavailable("{}: nobody waits with that answer", peer);
    }
    link_->end(0).open = true;
    link_->Connect();
    return std::make_unique<SimConnection>(link_, 0);
  }

 private:
  SimFabric& fabric_;
  const std::shared_ptr<SimLink> link_;
  const std::string offer_;
};

absl::StatusOr<std::unique_ptr<transport::Connector>> SimTransport::Offer(
    const transport::ConnectionOptions& options) {
  auto link = std::make_shared<SimLink>(fabric_.context_);
  SHOAL_RETURN_IF_ERROR(Attach(*link, 0, options));
  std::erase_if(fabric_.links_, [](const auto& other) { return other.expired(); });
  fabric_.links_.push_back(link);
  return std::make_unique<SimConnector>(fabric_, std::move(link));
}

absl::StatusOr<transport::Acceptance> SimTransport::Accept(
    const std::string& offer, const transport::ConnectionOptions& options) {
  const auto found = fabric_.offered_.find(offer);
  if (found == fabric_.offered_.end()) {
    return InvalidArgument("{}: nobody has offered that", options.peer);
  }
  const std::shared_ptr<SimLink> link = found->second;
  SHOAL_RETURN_IF_ERROR(Attach(*link, 1, options));
  fabric_.offered_.erase(found);
  link->end(1).open = true;
  process_.After(options.handshake_timeout, [weak = std::weak_ptr(link)] {
    if (const auto waiting = weak.lock()) {
      waiting->Expire(1);
    }
  });
  return transport::Acceptance{std::make_unique<SimConnection>(link, 1), AnswerOf(*link)};
}

std::unique_ptr<transport::Transport> SimFabric::MakeTransport(SimProcess& process,
                                                               std::function<void()> turn,
                                                               std::function<void()> overlooked) {
  return std::make_unique<SimTransport>(*this, process, std::move(turn), std::move(overlooked));
}

void SimFabric::Break(int process) {
  for (const std::weak_ptr<SimLink>& weak : links_) {
    const std::shared_ptr<SimLink> link = weak.lock();
    for (const int side : {0, 1}) {
      if (link != nullptr && link->end(side).process != nullptr &&
          link->end(side).process->id() == process && link->end(side).open) {
        link->Forget(side);
      }
    }
  }
}

}  // namespace shoal::simulation
