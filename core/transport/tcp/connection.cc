#include "core/transport/tcp/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/tcp/io_thread.h"

namespace shoal::transport {
namespace {

// The most that one connection may move before its thread turns to the others.
constexpr size_t kTurnBytes = 1 * kMiB;

}  // namespace

TcpConnectionState::TcpConnectionState(const ConnectionOptions& options,
                                       std::shared_ptr<const RegionTable> table,
                                       const std::shared_ptr<GpuMemory>& gpu, std::string secret)
    : id_(NextConnectionId()),
      options_(options),
      queue_(static_cast<TcpQueue*>(options.queue)->inner()),
      sockets_(queue_->NextSockets()),
      table_(std::move(table)),
      secret_(std::move(secret)),
      outstanding_(options.max_outstanding),
      sent_staging_(gpu, TcpBatch::kMostPayloadBytes),
      received_staging_(gpu, kMaxPayloadBytes) {
  for (const auto& region : options_.exposed) {
    exposed_on_gpu_.push_back(table_->ResidenceOf(region->bytes()) == Residence::kGpu);
  }
}

bool TcpConnectionState::Open(UniqueFd socket, TcpPeer peer, const TcpSecrets& secrets,
                              const std::string& welcome) {
  absl::MutexLock lock(&mutex_);
  const int fd = socket.get();
  // The welcome fits the empty buffer of a new socket.
  if (phase_ != Phase::kHandshake ||
      send(fd, welcome.data(), welcome.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
          static_cast<ssize_t>(welcome.size())) {
    return false;
  }
  socket_ = std::move(socket);
  peer_ = std::move(peer);
  if (secrets.encrypts()) {
    batch_.Encrypt(RecordSealer(secrets.send));
    inbox_.Decrypt(RecordOpener(secrets.receive));
  }
  phase_ = Phase::kOpen;
  return sockets_->Add(id_, fd, shared_from_this());
}

std::vector<int64_t> TcpConnectionState::remote_region_sizes() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int64_t> sizes;
  for (const RemoteRegion& region : peer_.regions) {
    sizes.push_back(region.bytes);
  }
  return sizes;
}

PendingEvent TcpConnectionState::Make(Event::Kind kind, uint64_t operation, uint32_t immediate,
                                      absl::Status status) {
  return {{.kind = kind,
           .connection = id_,
           .operation = operation,
           .immediate = immediate,
           .status = std::move(status)},
          kind == Event::Kind::kClosed ? nullptr : shared_from_this()};
}

absl::Status TcpConnectionState::CheckUsable() const {
  switch (phase_) {
    case Phase::kHandshake:
      return FailedPrecondition("{}: the peer has not completed the handshake yet", peer());
    case Phase::kOpen:
      return absl::OkStatus();
    default:
      return Unavailable("{}: the connection is closed", peer());
  }
}

absl::Status TcpConnectionState::PostReads(std::span<const ReadOperation> operations) {
  bool leave = false;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(CheckUsable());
    SHOAL_RETURN_IF_ERROR(CheckReads(peer(), peer_.regions, operations,
                                     [this](auto memory) { return table_->Contains(memory); }));
    if (!outstanding_.TakeReads(operations.size())) {
      return ResourceExhausted("{}: more than {} reads outstanding", peer(), outstanding_.limit());
    }
    for (const ReadOperation& operation : operations) {
      if (operation.into.empty()) {
        PendingEvent done = Make(Event::Kind::kReadDone, operation.id, 0, absl::OkStatus());
        queue_->Push({&done, 1});
        continue;
      }
      outbox_.AddRead(++reads_posted_, operation.region, operation.offset, operation.into.size());
      reads_.push_back({operation.id, operation.into, 0});
    }
    // The kernel locks the socket while a receive copies: a request would wait for that, and so
    // would what arrives meanwhile. The receiving thread sends next.
    leave = receiving_;
  }
  if (!leave) {
    Send();
  }
  return absl::OkStatus();
}

absl::Status TcpConnectionState::PostWrites(std::span<const WriteOperation> operations) {
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(CheckUsable());
    SHOAL_RETURN_IF_ERROR(CheckWrites(peer(), peer_.regions, operations,
                                      [this](auto memory) { return table_->Contains(memory); }));
    const auto rings = static_cast<uint64_t>(CountRings(operations));
    const uint64_t waiting = doorbells_posted_ - doorbells_taken_there_;
    if (rings > 0 && waiting + rings > kMaxWaitingDoorbells) {
      return ResourceExhausted("{}: {} doorbells wait there already", peer(), waiting);
    }
    if (!outstanding_.TakeWrites(operations.size())) {
      return ResourceExhausted("{}: more than {} writes outstanding", peer(), outstanding_.limit());
    }
    doorbells_posted_ += rings;
    for (const WriteOperation& operation : operations) {
      outbox_.AddWrite(++writes_posted_, operation.region, operation.offset, operation.from,
                       operation.ring, operation.immediate);
      writes_.push_back(operation.id);
    }
  }
  Send();
  return absl::OkStatus();
}

void TcpConnectionState::AwaitWritable(bool wanted) {
  if (awaiting_writable_ != wanted) {
    awaiting_writable_ = wanted;
    sockets_->AwaitWritable(id_, socket_.get(), wanted);
  }
}

void TcpConnectionState::Send() {
  mutex_.Lock();
  if (sending_ || send_broken_ || phase_ != Phase::kOpen) {
    mutex_.Unlock();  // the sender checks the outbox again before it stops
    return;
  }
  sending_ = true;
  bool more = false;
  absl::Status failed;
  for (size_t used = 0; phase_ == Phase::kOpen && !send_broken_;) {
    if (batch_.empty()) {
      const absl::StatusOr<bool> filled = outbox_.Fill(batch_, sent_staging_);
      failed = filled.status();
      if (!failed.ok() || !*filled) {
        break;
      }
    }
    if (more = used >= kTurnBytes; more) {
      break;
    }
    const int fd = socket_.get();
    mutex_.Unlock();
    const ssize_t sent = batch_.Send(fd);
    const int error = errno;
    mutex_.Lock();
    writes_sent_ = batch_.writes_sent();
    if (sent >= 0) {
      used += static_cast<size_t>(sent);
      if (more = !batch_.empty(); more) {
        break;  // the socket is full
      }
    } else if (error == EAGAIN || error == EWOULDBLOCK) {
      more = true;
      break;
    } else if (error != EINTR) {
      // The receiving side learns why, perhaps from a goodbye not read yet.
      send_broken_ = true;
    }
  }
  if (phase_ == Phase::kOpen) {
    AwaitWritable(more);
  }
  sending_ = false;
  mutex_.Unlock();
  if (!failed.ok()) {
    Close(Annotate(failed, peer()));
  }
}

void TcpConnectionState::Receive() {
  int fd = -1;
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ != Phase::kOpen) {
      return;
    }
    receiving_ = true;
    heard_ = true;
    fd = socket_.get();
  }
  const absl::StatusOr<TcpInbox::Progress> progress = inbox_.Receive(fd, kTurnBytes, *this);
  queue_->Push(arrived_);
  arrived_.clear();
  const bool goodbye = goodbye_;
  {
    absl::MutexLock lock(&mutex_);
    receiving_ = false;
  }
  if (goodbye) {
    Close(absl::OkStatus());
  } else if (!progress.ok()) {
    Close(Annotate(progress.status(), peer()));
  } else if (*progress == TcpInbox::Progress::kEnd) {
    Close(Unavailable("{}: the peer is gone; it ended without closing the connection", peer()));
  }
}

void TcpConnectionState::Tick() {
  bool dead = false;
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ != Phase::kOpen) {
      return;
    }
    // Counts ticks that this thread really made, not time: if this process was stopped, its peers
    // are not to blame.
    silent_ticks_ = heard_ ? 0 : silent_ticks_ + 1;
    heard_ = false;
    dead = silent_ticks_ + 1 >= kTicksPerKeepAlive;
    if (silent_ticks_ > 0) {
      outbox_.Ping();
    }
  }
  if (dead) {
    Close(Unavailable("{}: the peer does not answer; nothing was heard of it within the keep-alive",
                      peer()));
  } else {
    Send();
  }
}

void TcpConnectionState::FailOutstanding(const absl::Status& status,
                                         std::vector<PendingEvent>& events) {
  for (const OutstandingRead& read : reads_) {
    events.push_back(Make(Event::Kind::kReadDone, read.operation, 0, status));
  }
  for (const uint64_t operation : writes_) {
    events.push_back(Make(Event::Kind::kWriteDone, operation, 0, status));
  }
  reads_.clear();
  writes_.clear();
}

void TcpConnectionState::Close(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kClosing || phase_ == Phase::kClosed) {
    auto closed = [this]()
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return phase_ == Phase::kClosed; };
    mutex_.Await(absl::Condition(&closed));
    return;
  }
  phase_ = Phase::kClosing;
  auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !sending_ && !receiving_; };
  mutex_.Await(absl::Condition(&quiet));  // both are within a system call that does not block
  if (socket_.valid()) {
    if (absl::IsCancelled(why)) {
      batch_.SendGoodbye(socket_.get());
    }
    sockets_->Remove(id_, socket_.get());
    shutdown(socket_.get(), SHUT_RDWR);
    socket_.Reset();
  }
  std::vector<PendingEvent> events;
  FailOutstanding(why.ok() ? Unavailable("{}: the peer closed the connection", peer()) : why,
                  events);
  events.push_back(Make(Event::Kind::kClosed, 0, 0, why));
  queue_->Push(events);
  phase_ = Phase::kClosed;
}

void TcpConnectionState::Polled(Event::Kind kind) {
  if (kind != Event::Kind::kDoorbell) {
    outstanding_.Polled(kind);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    outbox_.SetTaken(++doorbells_taken_);
    if (doorbells_taken_ - credit_given_ < kMaxWaitingDoorbells / 4) {
      return;
    }
    credit_given_ = doorbells_taken_;
    outbox_.Acknowledge();
  }
  Send();
}

}  // namespace shoal::transport
