#include "tests/simulation/data/sim_link.h"

#include <algorithm>
#include <cstring>

#include "core/base/status.h"

namespace shoal::simulation {
namespace {

using Kind = transport::Event::Kind;

constexpr Nanoseconds kReset = 200'000;  // until a peer knows that a process has ended

}  // namespace

void SimLink::Send(int side, std::function<void(const MessageFate&)> arrive) {
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

void SimLink::Connect() {
  connected_ = true;
  for (const int side : {0, 1}) {
    end(side).reaches = transport::DescribeRegions(end(1 - side).exposed);
  }
}

absl::Status SimLink::CheckUsable(const End& end) const {
  if (!end.open) {
    return Unavailable("{}: the connection is closed", end.peer);
  }
  return connected_ ? absl::OkStatus() : Unavailable("{}: it has not connected yet", end.peer);
}

void SimLink::Complete(End& end, Kind kind, uint64_t id) {
  const auto found = std::ranges::find(end.posted, std::pair(kind, id));
  if (end.open && found != end.posted.end()) {
    end.posted.erase(found);
    end.queue->Push({{.kind = kind, .connection = end.id, .operation = id}, end.outstanding});
  }
}

absl::Status SimLink::PostReads(int side, std::span<const transport::ReadOperation> operations) {
  End& from = end(side);
  SHOAL_RETURN_IF_ERROR(CheckUsable(from));
  SHOAL_RETURN_IF_ERROR(
      transport::CheckReads(from.peer, from.reaches, operations,
                            [&from](auto memory) { return from.table->Contains(memory); }));
  if (!from.outstanding->TakeReads(operations.size())) {
    return ResourceExhausted("{}: more than {} reads outstanding", from.peer,
                             from.outstanding->limit());
  }
  for (const transport::ReadOperation& read : operations) {
    from.posted.emplace_back(Kind::kReadDone, read.id);
  }
  Send(side, [this, side, reads = std::vector(operations.begin(), operations.end())](const auto&) {
    End& reader = end(side);
    const End& peer = end(1 - side);
    for (const transport::ReadOperation& read : reads) {
      if (!reader.open || !peer.open) {
        return;
      }
      if (!read.into.empty()) {
        std::memcpy(read.into.data(), At(peer, read.region, read.offset), read.into.size());
      }
      Complete(reader, Kind::kReadDone, read.id);
    }
  });
  return absl::OkStatus();
}

absl::Status SimLink::PostWrites(int side, std::span<const transport::WriteOperation> operations) {
  End& from = end(side);
  SHOAL_RETURN_IF_ERROR(CheckUsable(from));
  SHOAL_RETURN_IF_ERROR(
      transport::CheckWrites(from.peer, from.reaches, operations,
                             [&from](auto memory) { return from.table->Contains(memory); }));
  int64_t& waiting = end(1 - side).doorbells->waiting;
  const int64_t rings = transport::CountRings(operations);
  if (rings > 0 && waiting + rings > transport::kMaxWaitingDoorbells) {
    return ResourceExhausted("{}: {} doorbells wait there already", from.peer, waiting);
  }
  if (!from.outstanding->TakeWrites(operations.size())) {
    return ResourceExhausted("{}: more than {} writes outstanding", from.peer,
                             from.outstanding->limit());
  }
  waiting += rings;
  std::vector<Write> writes;
  for (const transport::WriteOperation& write : operations) {
    from.posted.emplace_back(Kind::kWriteDone, write.id);
    writes.push_back({write, {write.from.begin(), write.from.end()}});
  }
  Send(side, [this, side, writes = std::move(writes)](const MessageFate& fate) {
    for (const Write& write : writes) {
      Apply(side, write, fate);
    }
  });
  return absl::OkStatus();
}

void SimLink::Apply(int side, const Write& write, const MessageFate& fate) {
  End& peer = end(1 - side);
  if (!peer.open) {
    return;
  }
  const transport::WriteOperation& operation = write.operation;
  if (!write.bytes.empty()) {
    std::memcpy(At(peer, operation.region, operation.offset), write.bytes.data(),
                write.bytes.size());
  }
  if (operation.ring) {
    if (context_.faults.Fires("a doorbell is lost", context_.loop.now())) {
      --peer.doorbells->waiting;
      peer.overlooked();
    } else {
      Ring(peer, operation.immediate);
    }
    if (fate.repeat) {
      context_.loop.At(context_.loop.now() + *fate.repeat,
                       [link = shared_from_this(), side, immediate = operation.immediate] {
                         End& again = link->end(1 - side);
                         ++again.doorbells->waiting;
                         link->Ring(again, immediate);
                       });
    }
  }
  Complete(end(side), Kind::kWriteDone, operation.id);
}

void SimLink::Ring(End& end, uint32_t immediate) {
  if (end.open) {
    end.queue->Push(
        {{.kind = Kind::kDoorbell, .connection = end.id, .immediate = immediate}, end.doorbells});
  }
}

void SimLink::EndSide(int side, const absl::Status& operations, const absl::Status& closed) {
  End& ended = end(side);
  if (!std::exchange(ended.open, false)) {
    return;
  }
  ended.exposed.clear();
  for (const auto& [kind, id] : std::exchange(ended.posted, {})) {
    ended.queue->Push(
        {{.kind = kind, .connection = ended.id, .operation = id, .status = operations},
         ended.outstanding});
  }
  ended.queue->Push({{.kind = Kind::kClosed, .connection = ended.id, .status = closed}, nullptr});
}

void SimLink::Close(int side) {
  if (!end(side).open) {
    return;
  }
  EndSide(side, Cancelled("{}: the connection was closed", end(side).peer), absl::OkStatus());
  Nanoseconds& arrival = end(1 - side).arrival;
  arrival = std::max(arrival, context_.loop.now() + kReset);
  context_.loop.At(arrival, [link = shared_from_this(), side] {
    link->EndSide(1 - side, Unavailable("{} closed the connection", link->end(1 - side).peer),
                  absl::OkStatus());
  });
}

void SimLink::Expire(int side) {
  if (!connected_) {
    const absl::Status late = DeadlineExceeded("{} has not connected", end(side).peer);
    EndSide(side, late, late);
  }
}

void SimLink::BreakAfter(Nanoseconds delay, const char* why) {
  context_.loop.At(context_.loop.now() + delay, [link = shared_from_this(), why] {
    for (const int side : {0, 1}) {
      const absl::Status broken = Unavailable("{}: {}", link->end(side).peer, why);
      link->EndSide(side, broken, broken);
    }
  });
}

void SimLink::Forget(int side) {
  End& gone = end(side);
  gone.open = false;
  gone.exposed.clear();
  gone.posted.clear();
  Nanoseconds& arrival = end(1 - side).arrival;
  arrival = std::max(arrival, context_.loop.now() + kReset);
  context_.loop.At(arrival, [link = shared_from_this(), side] {
    const absl::Status reset = Unavailable("{}: it has ended", link->end(1 - side).peer);
    link->EndSide(1 - side, reset, reset);
  });
}

}  // namespace shoal::simulation
