// A turn of a transport: handles events, posts operations, copies.
#include <algorithm>
#include <cstring>

#include "client/session.h"
#include "core/base/bf16.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/push_header.h"

namespace shoal::client {
namespace {

// Longest sleep without work. Wake() ends it, so this only bounds the cost of a lost wake-up.
constexpr absl::Duration kIdle = absl::Milliseconds(500);
// Delay before retrying what a full queue refused.
constexpr absl::Duration kFullQueueDelay = absl::Milliseconds(1);
// Read from files in one turn.
constexpr int64_t kPieceElements = 1 << 18;
// Keeps at most this many, the newest, of the connections that closed before they were adopted.
constexpr size_t kMostClosedEarly = 64;

bool IsFull(const absl::Status& status) {
  return status.code() == absl::StatusCode::kResourceExhausted;
}

// Converts `count` elements from one type to the other.
void ConvertElements(const std::byte* from, DType from_type, std::byte* to, int64_t count) {
  const auto size = static_cast<size_t>(count);
  if (from_type == DType::kBF16) {
    shoal::Convert(std::span(reinterpret_cast<const BFloat16*>(from), size),
                   reinterpret_cast<float*>(to));
  } else {
    shoal::Convert(std::span(reinterpret_cast<const float*>(from), size),
                   reinterpret_cast<BFloat16*>(to));
  }
}

}  // namespace

bool Session::TurnIo(size_t index, absl::Time* next) {
  Io& io = io_[index];
  const size_t count = io.queue->Poll(io.events);
  for (size_t i = 0; i < count; ++i) {
    Handle(io, io.events[i]);
  }
  bool worked = count > 0;
  const absl::Time now = clock_.Now();
  *next = now + kIdle;
  for (int server = 0; server < layout_.servers; ++server) {
    worked = Serve(server, index, now, next) || worked;
  }
  worked = ConvertKept(io) || worked;
  return GiveBackGradients() || worked;
}

void Session::Handle(Io& io, const transport::Event& event) {
  using Kind = transport::Event::Kind;
  int server = -1;
  int convert = -1;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < links_.size(); ++i) {
      if (links_[i].connection != nullptr &&
          links_[i].connection->connection->id() == event.connection) {
        server = static_cast<int>(i);
      }
    }
    if (server < 0) {  // not adopted yet, or given up in its handshake
      if (event.kind == Kind::kClosed) {
        if (io.closed_early.size() == kMostClosedEarly) {  // those given up are never looked up
          io.closed_early.erase(io.closed_early.begin());
        }
        io.closed_early.push_back(event.connection);
      }
      return;
    }
    Link& from = link(server);
    if (event.kind == Kind::kReadDone) {
      const FetchTable::Outcome outcome =
          fetches_->OnRead(event.operation, event.status, clock_.Now());
      ClientStatistics::Transport& over = statistics_.transports[from.connection->transport];
      over.get_bytes += outcome.bytes;
      over.gpu_get_bytes += from.connection->weights_in_gpu ? outcome.bytes : 0;
      statistics_.rereads += outcome.reread ? 1 : 0;
      if (outcome.server >= 0) {
        statistics_.server_get_bytes[static_cast<size_t>(outcome.server)] += outcome.bytes;
        statistics_.backup_get_bytes += outcome.from_backup ? outcome.bytes : 0;
      }
      if (outcome.instead >= 0) {
        WakeServer(outcome.instead);
      }
      if (outcome.took.has_value() && options_.got) {
        options_.got(over.name, *outcome.took);
      }
      from.failures = event.status.ok() ? 0 : from.failures;
      convert = outcome.convert;
    } else if (event.kind == Kind::kDoorbell) {
      if (transport::IsBarrierDoorbell(event.immediate)) {
        OnBarrier(event.immediate);
        return;
      }
      Count(server,
            pushes_->OnAcknowledgement(server, event.immediate, *from.connection, clock_.Now()));
    }
  }
  if (convert >= 0) {
    Convert(convert);
  }
  if (event.kind == Kind::kClosed) {
    OnClosed(server, event.status);
  } else if (!event.status.ok()) {
    Break(server, event.status);
  }
}

void Session::Convert(int unit) {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    from = fetches_->wire(unit);
    to = fetches_->view(unit);
  }
  if (layout_.unit(unit).nf4_bytes == 0) {
    ConvertElements(from, wire_type_, to, layout_.unit(unit).count);
  } else {
    for (const int id : layout_.unit(unit).partitions) {
      const Nf4Piece& piece = layout_.nf4.at(id);
      piece.partition.Decode(from + piece.at, options_.compute_type,
                             to + layout_.partition(id).offset * SizeOf(options_.compute_type));
    }
  }
  absl::MutexLock lock(&mutex_);
  fetches_->Converted(unit);
}

bool Session::ConvertKept(Io& io) {
  int unit = -1;
  {
    absl::MutexLock lock(&mutex_);
    unit = fetches_->TakeKept();
  }
  if (unit >= 0) {
    layout_.unit(unit).from_files ? ConvertFromFiles(unit, io) : Convert(unit);
  }
  return unit >= 0;
}

// One piece of it, so that a slow disk does not keep a turn from what servers have sent. Its values
// are those that they would have had they come from a server.
void Session::ConvertFromFiles(int unit, Io& io) {
  int64_t first = 0;
  std::byte* to = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    first = fetches_->converted(unit);
    to = fetches_->view(unit) + first * SizeOf(options_.compute_type);
  }
  const int64_t count = std::min(layout_.unit(unit).count - first, kPieceElements);
  std::span<float> values(reinterpret_cast<float*>(to), static_cast<size_t>(count));
  if (options_.compute_type == DType::kBF16) {
    io.piece.resize(static_cast<size_t>(count));
    values = io.piece;
  }
  const absl::Status read = options_.files(unit, first, values);
  if (options_.compute_type == DType::kBF16) {
    shoal::Convert(values, reinterpret_cast<BFloat16*>(to));
  } else if (wire_type_ == DType::kBF16 && read.ok()) {
    std::ranges::transform(values, values.begin(),
                           [](float value) { return static_cast<float>(BFloat16(value)); });
  }
  absl::MutexLock lock(&mutex_);
  fetches_->ConvertedPiece(unit, count, read);
}

void Session::Count(int server, const PushTable::Outcome& outcome) {
  if (!outcome.completed) {
    return;
  }
  link(server).failures = 0;
  statistics_.duplicates += outcome.duplicate ? 1 : 0;
  if (options_.pushed) {
    options_.pushed(statistics_.transports[link(server).connection->transport].name, outcome.took);
  }
  if (refused_.ok()) {
    refused_ = outcome.refused;
  }
}

bool Session::Serve(int server, size_t io, absl::Time now, absl::Time* next) {
  DataConnection* connection = nullptr;
  bool try_again = false;
  {
    absl::MutexLock lock(&mutex_);
    Link& to = link(server);
    if (to.state != Link::State::kOpen || to.connection->transport != io) {
      return false;
    }
    connection = to.connection.get();  // stays: only a turn of this transport retires it
    try_again = to.try_again;
    ScanAcknowledgements(server, now, next);
  }
  if (try_again) {
    Break(server, Cancelled("connecting again, to try a transport again that was left out"));
    return true;
  }
  bool worked = PostReads(server, io_[io], *connection, now, next);
  worked = PostPush(server, *connection, now, next) || worked;
  worked = FillBuffer(server) || worked;
  worked = (server == kBarrierServer && RingBarrier(server, *connection, now, next)) || worked;
  return worked;
}

bool Session::PostReads(int server, Io& io, DataConnection& connection, absl::Time now,
                        absl::Time* next) {
  {
    absl::MutexLock lock(&mutex_);
    fetches_->CollectReads(server, connection, now, io.reads, next);
  }
  if (io.reads.empty()) {
    return false;
  }
  absl::Status posted = connection.connection->PostReads(io.reads);
  std::vector<transport::ReadOperation>* refused = &io.reads;
  if (posted.ok() && io.transport->capabilities().inline_reads) {
    // Data was in place when the post returned, so its headers may be read at once.
    {
      absl::MutexLock lock(&mutex_);
      fetches_->CollectHeaders(connection, io.reads, io.headers);
    }
    if (io.headers.empty()) {
      return true;
    }
    posted = connection.connection->PostReads(io.headers);
    refused = &io.headers;
  }
  if (posted.ok()) {
    return true;
  }
  {
    absl::MutexLock lock(&mutex_);
    fetches_->Unpost(*refused);
  }
  if (IsFull(posted)) {
    *next = std::min(*next, now + kFullQueueDelay);
  } else {
    Break(server, posted);
  }
  return false;
}

bool Session::PostPush(int server, DataConnection& connection, absl::Time now, absl::Time* next) {
  bool worked = false;
  while (true) {
    std::optional<PushTable::Posting> posting;
    {
      absl::MutexLock lock(&mutex_);
      if (link(server).state == Link::State::kOpen) {
        posting = pushes_->NextToPost(server, connection, clock_.Now());
      }
      if (!posting.has_value()) {
        return worked;
      }
      statistics_.most_in_flight = std::max(statistics_.most_in_flight, pushes_->in_flight(server));
    }
    const absl::Status posted = connection.connection->PostWrites(posting->writes);
    {
      absl::MutexLock lock(&mutex_);
      if (posted.ok()) {
        ClientStatistics::Transport& over = statistics_.transports[connection.transport];
        over.push_bytes += posting->bytes;
        over.gpu_push_bytes += connection.payloads_in_gpu() ? posting->bytes : 0;
      } else {
        pushes_->Unpost(server, posting->buffer);
      }
    }
    if (posted.ok()) {
      worked = true;
      continue;
    }
    if (IsFull(posted)) {
      *next = std::min(*next, now + kFullQueueDelay);
    } else {
      Break(server, posted);
    }
    return worked;
  }
}

bool Session::FillBuffer(int server) {
  std::optional<PushTable::Filling> filling;
  {
    absl::MutexLock lock(&mutex_);
    filling = pushes_->NextToFill(server);
  }
  if (!filling.has_value()) {
    return false;
  }
  if (options_.gradient_type == DType::kF32) {
    std::memcpy(filling->payload, filling->from.data(), filling->from.size_bytes());
  } else {
    shoal::Convert(filling->from, reinterpret_cast<BFloat16*>(filling->payload));
  }
  const size_t bytes = filling->from.size() * static_cast<size_t>(SizeOf(options_.gradient_type));
  const uint64_t hash =
      options_.verify_pushes ? transport::PayloadHash({filling->payload, bytes}) : 0;
  absl::MutexLock lock(&mutex_);
  pushes_->Filled(server, filling->buffer, hash);
  return true;
}

bool Session::GiveBackGradients() {
  bool any = false;
  while (true) {
    std::optional<PushTable::Return> due;
    {
      absl::MutexLock lock(&mutex_);
      due = pushes_->TakeReturn();
    }
    if (!due.has_value()) {
      return any;
    }
    any = true;
    if (due->done != nullptr) {
      due->done->Returned(due->unit, due->gradient);
    }
  }
}

void Session::OnBarrier(uint32_t immediate) {
  const uint32_t ahead = (transport::BarrierTagOf(immediate) - barriers_.tag) & 0x7F;
  if (ahead == 0) {
    barriers_.over = std::max(barriers_.over, transport::BarrierCountOf(immediate));
  } else if (ahead < 64) {  // otherwise of an earlier attempt
    barriers_.ended = true;
  }
}

bool Session::RingBarrier(int server, DataConnection& connection, absl::Time now,
                          absl::Time* next) {
  uint32_t immediate = 0;
  uint32_t come = 0;
  {
    absl::MutexLock lock(&mutex_);
    const bool again = barriers_.waiting > 0 && now - barriers_.rung_at >= options_.rescan_interval;
    if (barriers_.waiting > 0) {
      *next = std::min(*next, std::max(now, barriers_.rung_at) + options_.rescan_interval);
    }
    if (link(server).state != Link::State::kOpen ||
        (barriers_.arrived == barriers_.rung && !again)) {
      return false;
    }
    come = barriers_.arrived;
    immediate = transport::BarrierDoorbell(barriers_.tag, come);
    barriers_.rung = come;
    barriers_.rung_at = now;
  }
  const transport::WriteOperation write = {
      .id = kBarrierOperation, .region = 0, .ring = true, .immediate = immediate};
  const absl::Status posted = connection.connection->PostWrites({&write, 1});
  if (posted.ok()) {
    return true;
  }
  {
    absl::MutexLock lock(&mutex_);
    barriers_.rung = 0;  // rings again
  }
  if (IsFull(posted)) {
    *next = std::min(*next, now + kFullQueueDelay);
  } else {
    Break(server, posted);
  }
  return false;
}

void Session::ScanAcknowledgements(int server, absl::Time now, absl::Time* next) {
  Link& at = link(server);
  if (pushes_->in_flight(server) == 0) {
    at.last_scan = now;
    return;
  }
  if (now - at.last_scan >= options_.rescan_interval) {
    at.last_scan = now;
    for (const PushTable::Outcome& outcome : pushes_->Scan(server, *at.connection, now)) {
      ++statistics_.found_by_scan;
      Count(server, outcome);
    }
  }
  *next = std::min(*next, at.last_scan + options_.rescan_interval);
}

void Session::Break(int server, const absl::Status& why) {
  transport::Connection* connection = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    Link& broken = link(server);
    if (broken.state != Link::State::kOpen) {
      return;
    }
    broken.state = Link::State::kClosing;
    broken.error = why;
    connection = broken.connection->connection.get();
  }
  connection->Close();
}

// What is to come from a server whose connection has ended.
void Session::ReadElsewhere(int server) {
  if (!fetches_->LoseServer(server)) {
    return;
  }
  for (int other = 0; other < layout_.servers; ++other) {
    link(other).state == Link::State::kFailed ? fetches_->FailServer(other, link(other).error)
                                              : WakeServer(other);
  }
}

void Session::OnClosed(int server, const absl::Status& why) {
  std::unique_ptr<DataConnection> retired;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  Link& closed = link(server);
  if (closed.state == Link::State::kOpen) {
    closed.try_again = false;  // it is not this side that has closed it
    closed.error = why.ok() ? Unavailable("the peer closed the connection") : why;
  }
  closed.state = Link::State::kConnecting;
  closed.not_before = clock_.Now();
  retired = std::move(closed.connection);
  const int resent = pushes_->Requeue(server);
  statistics_.resent += resent;
  ReadElsewhere(server);
  if (stopping_) {
    return;
  }
  if (closed.try_again) {
    LogInfo("{}: {}", ServerName(server), Message(closed.error));
  } else {
    LogWarning("{}: connection lost ({}); connecting again, {} pushes to send again",
               ServerName(server), Message(closed.error), resent);
    CountBreak(server, retired->transport);
  }
}

}  // namespace shoal::client
