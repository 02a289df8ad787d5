#include "tests/simulation/data/sim_fabric.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <new>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::simulation {
namespace {

using transport::Event;
using Kind = transport::Event::Kind;

constexpr Nanoseconds kReset = 200'000;  // until a peer knows that a process has ended

class SimRegion final : public transport::Region {
 public:
  SimRegion(std::span<std::byte> memory, transport::Access access)
      : memory_(memory), access_(access) {}
  SimRegion(int64_t bytes, transport::Access access)
      : owned_(static_cast<size_t>(bytes) / sizeof(Line) + 1),
        memory_(reinterpret_cast<std::byte*>(owned_.data()), static_cast<size_t>(bytes)),
        access_(access) {}

  std::span<std::byte> bytes() override { return memory_; }
  transport::Access access() const override { return access_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::vector<Line> owned_;
  const std::span<std::byte> memory_;
  const transport::Access access_;
};

// Of one transport: its process takes a turn when there is something.
class SimQueue final : public transport::EventQueue {
 public:
  SimQueue(SimProcess& process, std::function<void()> turn)
      : process_(process), turn_(std::make_shared<std::function<void()>>(std::move(turn))) {}

  size_t Poll(std::span<Event> events) override {
    size_t count = 0;
    for (; count < events.size() && !events_.empty(); ++count) {
      events[count] = std::move(events_.front());
      events_.pop_front();
    }
    return count;
  }
  bool Wait(absl::Duration) override { SHOAL_CHECK(false); }
  void Wake() override {
    if (std::exchange(*scheduled_, true)) {
      return;
    }
    process_.After(absl::ZeroDuration(), [turn = std::weak_ptr(turn_), scheduled = scheduled_] {
      *scheduled = false;
      if (const auto alive = turn.lock()) {
        (*alive)();
      }
    });
  }
  void Push(Event event) {
    events_.push_back(std::move(event));
    Wake();
  }

 private:
  SimProcess& process_;
  const std::shared_ptr<std::function<void()>> turn_;
  const std::shared_ptr<bool> scheduled_ = std::make_shared<bool>(false);
  std::deque<Event> events_;
};

}  // namespace

// Two ends, each of a process.
class SimFabric::Link : public std::enable_shared_from_this<Link> {
 public:
  struct End {
    SimProcess* process = nullptr;
    SimQueue* queue = nullptr;
    std::function<void()> overlooked;
    std::vector<std::shared_ptr<transport::Region>> exposed;
    uint64_t id = 0;
    bool open = false;
    Nanoseconds arrival = 0;                        // of the newest message to this end
    std::vector<std::pair<Kind, uint64_t>> posted;  // operations that are not complete
  };

  explicit Link(SimContext& context) : context_(context) {}

  End& end(int side) { return ends_[static_cast<size_t>(side)]; }

  absl::Status PostReads(int side, std::span<const transport::ReadOperation> operations);
  absl::Status PostWrites(int side, std::span<const transport::WriteOperation> operations);
  // In good order: the other end hears of it behind what is on its way.
  void Close(int side);
  void BreakAfter(Nanoseconds delay, const char* why);
  // Nothing of that process is touched any more.
  void Forget(int side);

 private:
  struct Write {
    transport::WriteOperation operation;
    std::vector<std::byte> bytes;
  };

  // Sends a message to the other end, where `arrive` runs if it comes. False: it is lost, and the
  // link breaks.
  void Send(int side, std::function<void(const MessageFate&)> arrive);
  void Complete(End& end, Kind kind, uint64_t id, const absl::Status& status);
  void EndSide(int side, const absl::Status& operations, const absl::Status& closed);
  void Apply(int side, const Write& write, const MessageFate& fate);
  void Ring(End& end, uint32_t immediate);
  // Null: not in a region that the other end may touch like that.
  std::byte* Reach(End& peer, int region, int64_t offset, size_t bytes, bool writes);

  SimContext& context_;
  std::array<End, 2> ends_;
};

void SimFabric::Link::Send(int side, std::function<void(const MessageFate&)> arrive) {
  const SimProcess& from = *end(side).process;
  const SimProcess& to = *end(1 - side).process;
  EventLoop& loop = context_.loop;
  const MessageFate fate =
      context_.faults.OfMessage(from.id(), to.id(), from.name(), to.name(), loop.now());
  const Nanoseconds cut = context_.network.CutFor(from.id(), to.id());
  if (fate.lose_request || cut > SimNetwork::kKeepAlive) {
    BreakAfter(fate.lose_request ? *fate.lose_request : SimNetwork::kKeepAlive, "it is lost");
    return;
  }
  Nanoseconds& arrival = end(1 - side).arrival;
  arrival = std::max(arrival,
                     loop.now() + fate.delay + cut + context_.network.ClogFor(from.id(), to.id()));
  loop.At(arrival, [link = shared_from_this(), fate, arrive = std::move(arrive)] { arrive(fate); });
  if (fate.lose_reply) {
    BreakAfter(arrival - loop.now() + *fate.lose_reply, "it is lost");
  }
}

std::byte* SimFabric::Link::Reach(End& peer, int region, int64_t offset, size_t bytes,
                                  bool writes) {
  if (region < 0 || region >= std::ssize(peer.exposed)) {
    return nullptr;
  }
  transport::Region& memory = *peer.exposed[static_cast<size_t>(region)];
  const std::span<std::byte> all = memory.bytes();
  const auto from = static_cast<size_t>(offset);
  const bool allowed = memory.access() == transport::Access::kRemoteWrite ||
                       (!writes && memory.access() == transport::Access::kRemoteRead);
  return allowed && offset >= 0 && from <= all.size() && bytes <= all.size() - from
             ? all.data() + from
             : nullptr;
}

void SimFabric::Link::Complete(End& end, Kind kind, uint64_t id, const absl::Status& status) {
  const auto found = std::ranges::find(end.posted, std::pair(kind, id));
  if (end.open && found != end.posted.end()) {
    end.posted.erase(found);
    end.queue->Push({.kind = kind, .connection = end.id, .operation = id, .status = status});
  }
}

absl::Status SimFabric::Link::PostReads(int side,
                                        std::span<const transport::ReadOperation> operations) {
  if (!end(side).open) {
    return Unavailable("the connection is closed");
  }
  for (const transport::ReadOperation& read : operations) {
    end(side).posted.emplace_back(Kind::kReadDone, read.id);
  }
  Send(side, [this, side, reads = std::vector(operations.begin(), operations.end())](const auto&) {
    End& reader = end(side);
    End& peer = end(1 - side);
    for (const transport::ReadOperation& read : reads) {
      if (!reader.open || !peer.open) {
        return;
      }
      const std::byte* from = Reach(peer, read.region, read.offset, read.into.size(), false);
      if (from != nullptr) {
        std::memcpy(read.into.data(), from, read.into.size());
      }
      Complete(reader, Kind::kReadDone, read.id,
               from != nullptr ? absl::OkStatus() : PermissionDenied("outside of what is exposed"));
    }
  });
  return absl::OkStatus();
}

absl::Status SimFabric::Link::PostWrites(int side,
                                         std::span<const transport::WriteOperation> operations) {
  if (!end(side).open) {
    return Unavailable("the connection is closed");
  }
  std::vector<Write> writes;
  for (const transport::WriteOperation& write : operations) {
    end(side).posted.emplace_back(Kind::kWriteDone, write.id);
    writes.push_back({write, {write.from.begin(), write.from.end()}});
  }
  Send(side, [this, side, writes = std::move(writes)](const MessageFate& fate) {
    for (const Write& write : writes) {
      Apply(side, write, fate);
    }
  });
  return absl::OkStatus();
}

void SimFabric::Link::Apply(int side, const Write& write, const MessageFate& fate) {
  End& peer = end(1 - side);
  if (!peer.open) {
    return;
  }
  const transport::WriteOperation& operation = write.operation;
  const size_t bytes = write.bytes.size();
  std::byte* to = Reach(peer, operation.region, operation.offset, bytes, true);
  if (to == nullptr && bytes > 0) {
    Complete(end(side), Kind::kWriteDone, operation.id,
             PermissionDenied("outside of what is exposed"));
    return;
  }
  if (bytes > 0) {
    std::memcpy(to, write.bytes.data(), bytes);
  }
  if (operation.ring) {
    if (context_.faults.Fires("a doorbell is lost", context_.loop.now())) {
      peer.overlooked();
    } else {
      Ring(peer, operation.immediate);
    }
    if (fate.repeat) {
      context_.loop.At(context_.loop.now() + *fate.repeat,
                       [link = shared_from_this(), side, immediate = operation.immediate] {
                         link->Ring(link->end(1 - side), immediate);
                       });
    }
  }
  Complete(end(side), Kind::kWriteDone, operation.id, absl::OkStatus());
}

void SimFabric::Link::Ring(End& end, uint32_t immediate) {
  if (end.open) {
    end.queue->Push({.kind = Kind::kDoorbell, .connection = end.id, .immediate = immediate});
  }
}

void SimFabric::Link::EndSide(int side, const absl::Status& operations,
                              const absl::Status& closed) {
  End& ended = end(side);
  if (!std::exchange(ended.open, false)) {
    return;
  }
  ended.exposed.clear();
  for (const auto& [kind, id] : std::exchange(ended.posted, {})) {
    ended.queue->Push(
        {.kind = kind, .connection = ended.id, .operation = id, .status = operations});
  }
  ended.queue->Push({.kind = Kind::kClosed, .connection = ended.id, .status = closed});
}

void SimFabric::Link::Close(int side) {
  if (!end(side).open) {
    return;
  }
  EndSide(side, Cancelled("the connection was closed"), absl::OkStatus());
  Nanoseconds& arrival = end(1 - side).arrival;
  arrival = std::max(arrival, context_.loop.now() + kReset);
  context_.loop.At(arrival, [link = shared_from_this(), side] {
    link->EndSide(1 - side, Unavailable("the peer closed the connection"), absl::OkStatus());
  });
}

void SimFabric::Link::BreakAfter(Nanoseconds delay, const char* why) {
  context_.loop.At(context_.loop.now() + delay, [link = shared_from_this(), why] {
    for (const int side : {0, 1}) {
      link->EndSide(side, Unavailable("{}", why), Unavailable("{}", why));
    }
  });
}

void SimFabric::Link::Forget(int side) {
  End& gone = end(side);
  gone.open = false;
  gone.exposed.clear();
  gone.posted.clear();
  Nanoseconds& arrival = end(1 - side).arrival;
  arrival = std::max(arrival, context_.loop.now() + kReset);
  context_.loop.At(arrival, [link = shared_from_this(), side] {
    link->EndSide(1 - side, Unavailable("the connection was reset"),
                  Unavailable("the connection was reset"));
  });
}

class SimConnection final : public transport::Connection {
 public:
  SimConnection(std::shared_ptr<SimFabric::Link> link, int side, std::string peer)
      : link_(std::move(link)), side_(side), peer_(std::move(peer)), id_(link_->end(side).id) {}
  ~SimConnection() override { link_->Close(side_); }

  uint64_t id() const override { return id_; }
  const std::string& peer() const override { return peer_; }
  std::vector<int64_t> remote_region_sizes() const override {
    std::vector<int64_t> sizes;
    for (const auto& region : link_->end(1 - side_).exposed) {
      sizes.push_back(std::ssize(region->bytes()));
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
  const std::shared_ptr<SimFabric::Link> link_;
  const int side_;
  const std::string peer_;
  const uint64_t id_;
};

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

  std::string_view name() const override { return "simulated"; }
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<std::unique_ptr<transport::EventQueue>> CreateQueue() override {
    return std::make_unique<SimQueue>(process_, turn_);
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Allocate(int64_t bytes,
                                                              transport::Access access) override {
    return std::make_shared<SimRegion>(bytes, access);
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Register(std::span<std::byte> memory,
                                                              transport::Access access) override {
    return std::make_shared<SimRegion>(memory, access);
  }
  absl::StatusOr<std::unique_ptr<transport::Connector>> Offer(
      const transport::ConnectionOptions& options) override;
  absl::StatusOr<transport::Acceptance> Accept(
      const std::string& offer, const transport::ConnectionOptions& options) override;

 private:
  class SimConnector;
  void Attach(SimFabric::Link& link, int side, const transport::ConnectionOptions& options) {
    SimFabric::Link::End& end = link.end(side);
    end.process = &process_;
    end.queue = static_cast<SimQueue*>(options.queue);
    end.overlooked = overlooked_;
    end.exposed = options.exposed;
    end.id = ++fabric_.next_id_;
  }

  SimFabric& fabric_;
  SimProcess& process_;
  const std::function<void()> turn_;
  const std::function<void()> overlooked_;
  transport::Capabilities capabilities_;
};

class SimTransport::SimConnector final : public transport::Connector {
 public:
  SimConnector(SimFabric& fabric, std::shared_ptr<SimFabric::Link> link, std::string peer)
      : fabric_(fabric), link_(std::move(link)), peer_(std::move(peer)) {
    offer_ = std::to_string(link_->end(0).id);
    fabric_.offered_[offer_] = link_;
  }
  ~SimConnector() override {
    fabric_.offered_.erase(offer_);
    if (!completed_ && link_->end(1).process != nullptr) {
      link_->Forget(0);
    }
  }

  const std::string& offer() const override { return offer_; }
  absl::StatusOr<std::unique_ptr<transport::Connection>> Complete(const std::string&) override {
    if (!link_->end(1).open) {
      return Unavailable("{} closed the connection", peer_);
    }
    completed_ = true;
    link_->end(0).open = true;
    return std::make_unique<SimConnection>(link_, 0, peer_);
  }

 private:
  SimFabric& fabric_;
  const std::shared_ptr<SimFabric::Link> link_;
  const std::string peer_;
  std::string offer_;
  bool completed_ = false;
};

absl::StatusOr<std::unique_ptr<transport::Connector>> SimTransport::Offer(
    const transport::ConnectionOptions& options) {
  auto link = std::make_shared<SimFabric::Link>(fabric_.context_);
  Attach(*link, 0, options);
  std::erase_if(fabric_.links_, [](const auto& other) { return other.expired(); });
  fabric_.links_.push_back(link);
  return std::make_unique<SimConnector>(fabric_, std::move(link), options.peer);
}

absl::StatusOr<transport::Acceptance> SimTransport::Accept(
    const std::string& offer, const transport::ConnectionOptions& options) {
  const auto found = fabric_.offered_.find(offer);
  if (found == fabric_.offered_.end()) {
    return InvalidArgument("nobody has offered that");
  }
  const std::shared_ptr<SimFabric::Link> link = found->second;
  Attach(*link, 1, options);
  link->end(1).open = true;
  return transport::Acceptance{std::make_unique<SimConnection>(link, 1, options.peer), "taken"};
}

std::unique_ptr<transport::Transport> SimFabric::MakeTransport(SimProcess& process,
                                                               std::function<void()> turn,
                                                               std::function<void()> overlooked) {
  return std::make_unique<SimTransport>(*this, process, std::move(turn), std::move(overlooked));
}

void SimFabric::Break(int process) {
  for (const std::weak_ptr<Link>& weak : links_) {
    const std::shared_ptr<Link> link = weak.lock();
    for (const int side : {0, 1}) {
      if (link != nullptr && link->end(side).process != nullptr &&
          link->end(side).process->id() == process && link->end(side).open) {
        link->Forget(side);
      }
    }
  }
}

}  // namespace shoal::simulation
