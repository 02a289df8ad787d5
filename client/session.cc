#include "client/session.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::client {
namespace {

// Adds up the time for which a caller blocks.
class BlockedTimer {
 public:
  BlockedTimer(Clock& clock, double* seconds)
      : clock_(clock), start_(clock.Now()), seconds_(seconds) {}
  ~BlockedTimer() { *seconds_ += absl::ToDoubleSeconds(clock_.Now() - start_); }

 private:
  Clock& clock_;
  absl::Time start_;
  double* seconds_;
};

// Most operations of one kind in flight per connection: everything at a server, with headers, if
// the whole model is kept for the step.
int64_t MaxOutstanding(const Layout& layout) {
  return std::max<int64_t>(1024, static_cast<int64_t>(layout.partitions.size()) * 2);
}

// By unit. Views of units in NF4 are never kept, what is read of them is.
struct Buffers {
  std::vector<BufferSizes::Wanted> views;
  std::vector<BufferSizes::Wanted> wire;  // of what is converted
};
Buffers BuffersOf(const Layout& layout, const ClientOptions& options, DType wire_type) {
  const int all = static_cast<int>(layout.units.size());
  const auto most = [&](bool keeps) { return keeps ? all : options.buffers_per_size; };
  Buffers buffers;
  for (int index = 0; index < all; ++index) {
    const UnitLayout& unit = layout.unit(index);
    const bool fetched =
        options.units.empty() || std::ranges::find(options.units, index) != options.units.end();
    const bool nf4 = unit.nf4_bytes > 0;
    const int64_t count = fetched ? unit.count : 0;
    buffers.views.push_back({.bytes = count * SizeOf(options.compute_type),
                             .most = most(options.keep_for_step && !nf4)});
    if (nf4) {
      buffers.wire.push_back(
          {.bytes = fetched ? unit.nf4_bytes : 0, .most = most(options.keep_for_step)});
    } else {
      const bool as_read = unit.from_files || wire_type == options.compute_type;
      buffers.wire.push_back(
          {.bytes = as_read ? 0 : count * SizeOf(wire_type), .most = most(false)});
    }
  }
  return buffers;
}

}  // namespace

Session::Session(const ClientOptions& options, Layout layout, ServerClient* server_client,
                 const std::vector<transport::Transport*>& transports, Clock& clock)
    : options_(options),
      layout_(std::move(layout)),
      transports_(transports),
      clock_(clock),
      io_(transports.size()),
      random_(options.seed) {
  for (int server = 0; server < layout_.servers; ++server) {
    links_.emplace_back(transports.size(), options.transport_policy);
  }
  const ServerConnections::Options connect = {.job_id = options.job_id,
                                              .incarnation = options.incarnation,
                                              .client = options.name,
                                              .read_only = options.read_only,
                                              .gradient_type = options.gradient_type,
                                              .max_outstanding = MaxOutstanding(layout_),
                                              .weights_in_gpu = options.weights_in_gpu,
                                              .payloads_in_gpu = options.payloads_in_gpu};
  connections_ = std::make_unique<ServerConnections>(connect, &layout_, server_client, transports);
}

absl::Status Session::Start(std::function<void(size_t transport)> use) {
  use_ = std::move(use);
  std::vector<transport::EventQueue*> queues;
  for (size_t i = 0; i < io_.size(); ++i) {
    io_[i].transport = transports_[i];
    SHOAL_ASSIGN_OR_RETURN(io_[i].queue, transports_[i]->CreateQueue());
    queues.push_back(io_[i].queue.get());
  }
  connections_->set_queues(std::move(queues));
  const absl::Time deadline = clock_.Now() + options_.connect_timeout;
  std::vector<std::unique_ptr<DataConnection>> connections;
  for (int server = 0; server < layout_.servers; ++server) {
    SHOAL_ASSIGN_OR_RETURN(auto connection, ConnectFirst(server, deadline));
    published_ = server == 0 ? connection->published : std::min(published_, connection->published);
    connections.push_back(std::move(connection));
  }
  wire_type_ = connections.empty() ? options_.compute_type : connections.front()->wire_type;

  const Buffers buffers = BuffersOf(layout_, options_, wire_type_);
  SHOAL_ASSIGN_OR_RETURN(view_buffers_, BufferPool::Create(BufferSizes(buffers.views), transports_,
                                                           options_.view_memory));
  const BufferSizes wire(buffers.wire);
  const bool convert = wire.total_bytes() > 0;
  if (convert) {
    SHOAL_ASSIGN_OR_RETURN(wire_buffers_, BufferPool::Create(wire, transports_));
  }
  SHOAL_ASSIGN_OR_RETURN(
      headers_, RegisteredMemory::Create(static_cast<int64_t>(layout_.partitions.size() *
                                                              sizeof(transport::PartitionHeader)),
                                         transports_));
  absl::MutexLock lock(&mutex_);
  fetches_ = std::make_unique<FetchTable>(
      FetchTable::Options{.wire_type = wire_type_,
                          .compute_type = options_.compute_type,
                          .keep_for_step = options_.keep_for_step,
                          .max_version_reads = options_.max_version_reads,
                          .version_retry_delay = options_.version_retry_delay},
      &layout_, &view_buffers_, convert ? &wire_buffers_ : nullptr,
      std::span(reinterpret_cast<transport::PartitionHeader*>(headers_->bytes().data()),
                layout_.partitions.size()));
  pushes_ = std::make_unique<PushTable>(PushTable::Options{.incarnation = options_.incarnation,
                                                           .gradient_type = options_.gradient_type,
                                                           .in_place = options_.push_in_place,
                                                           .max_gradients = options_.max_gradients},
                                        &layout_);
  statistics_.transports.resize(transports_.size());
  statistics_.connections.resize(links_.size());
  statistics_.server_get_bytes.resize(links_.size());
  for (size_t i = 0; i < transports_.size(); ++i) {
    statistics_.transports[i].name = std::string(transports_[i]->name());
  }
  for (int server = 0; server < layout_.servers; ++server) {
    SHOAL_RETURN_IF_ERROR(Adopt(server, std::vector<bool>(io_.size(), false),
                                std::move(connections[static_cast<size_t>(server)])));
  }
  buffer_bytes_ = view_buffers_.bytes() + (convert ? wire_buffers_.bytes() : 0) + pushes_->bytes();
  return absl::OkStatus();
}

Session::~Session() {
  // Destroys connections before the memory they reach and before their queues.
  absl::MutexLock lock(&mutex_);
  links_.clear();
}

void Session::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  WakeAll();
}

bool Session::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

bool Session::CanFollow(const Layout& layout) const {
  // By a later map than the next one a partition may be back where it was, at another place, or
  // come to another than was reserved for it.
  if (layout.servers != layout_.servers || layout.generation != layout_.generation + 1 ||
      !cancelled_.ok() || !fetches_->quiet() || !pushes_->quiet() ||
      std::ranges::any_of(links_,
                          [](const Link& link) { return link.state != Link::State::kOpen; })) {
    return false;
  }
  const auto reaches = [&](int id, int server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const DataConnection& connection = *links_[static_cast<size_t>(server)].connection;
    return layout_.KeepsPlace(id, server, layout) &&
           connection.locations[static_cast<size_t>(id)].headers_region >= 0;
  };
  return std::ranges::all_of(layout.partitions, [&](const plan::PartitionSpec& partition) {
    return reaches(partition.id, layout.writer_of(partition.id)) &&
           reaches(partition.id, layout.reader_of(partition.id));
  });
}

bool Session::Follow(Layout layout) {
  absl::MutexLock lock(&mutex_);
  if (!CanFollow(layout)) {
    return false;
  }
  for (const plan::PartitionSpec& partition : layout.partitions) {
    for (const int before : layout_.holders[static_cast<size_t>(partition.id)]) {
      if (!layout_.KeepsPlace(partition.id, before, layout)) {
        link(before).connection->locations[static_cast<size_t>(partition.id)] = {};
      }
    }
  }
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    layout_.units[unit].pieces = std::move(layout.units[unit].pieces);
  }
  layout_.holders = std::move(layout.holders);
  layout_.reader = std::move(layout.reader);
  layout_.generation = layout.generation;
  return true;
}

absl::Status Session::Begin(int64_t version, int64_t step, int64_t attempt) {
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(cancelled_);
    fetches_->Begin(version);
    pushes_->Begin(step, attempt);
    barriers_ = {.tag = transport::BarrierTag(step, attempt)};
    refused_ = absl::OkStatus();
    for (Link& link : links_) {
      if (link.state == Link::State::kFailed) {  // tries once more
        link.state = Link::State::kConnecting;
        link.failures = 0;
        link.not_before = absl::InfinitePast();
      } else if (link.state == Link::State::kOpen &&
                 link.policy.IsTryDue(link.connection->transport, clock_.Now())) {
        link.try_again = true;
        io_[link.connection->transport].queue->Wake();
      }
    }
    // A turn may be reading a gradient of the last attempt, which its owner will reuse.
    const auto filled = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return pushes_->all_filled(); };
    if (!AwaitFor(&mutex_, absl::Condition(&filled), options_.push_timeout)) {
      return DeadlineExceeded("begin step {}: an I/O thread still reads a gradient", step);
    }
  }
  GiveBackGradients();
  return absl::OkStatus();
}

void Session::Wake(int unit) {
  for (const UnitPiece& piece : layout_.unit(unit).pieces) {
    WakeServer(piece.server);
  }
}

void Session::WakeAll() const {
  for (const Io& io : io_) {
    if (io.queue != nullptr) {
      io.queue->Wake();
    }
  }
}

void Session::WakeServer(int server) {
  const Link& to = link(server);
  if (to.state == Link::State::kOpen) {
    io_[to.connection->transport].queue->Wake();
  }
}

absl::Status Session::Failure() const {
  if (!cancelled_.ok()) {
    return cancelled_;
  }
  if (!refused_.ok()) {
    return refused_;
  }
  for (const Link& link : links_) {
    if (link.state == Link::State::kFailed) {
      return link.error;
    }
  }
  return absl::OkStatus();
}

bool Session::StartFetch(int unit) {
  if (!fetches_->Start(unit)) {
    return false;
  }
  statistics_.fetches += fetches_->state(unit) == FetchTable::State::kFetching ? 1 : 0;
  for (size_t server = 0; server < links_.size(); ++server) {
    if (links_[server].state == Link::State::kFailed) {
      fetches_->FailServer(static_cast<int>(server), links_[server].error);
    }
  }
  Wake(unit);
  if (fetches_->state(unit) == FetchTable::State::kConverting) {
    WakeAll();  // it is here, whoever is connected
  }
  return true;
}

bool Session::Prefetch(int unit) {
  absl::MutexLock lock(&mutex_);
  if (!fetches_->resident(unit) && !StartFetch(unit)) {
    return false;
  }
  fetches_->AddUse(unit);
  return true;
}

absl::StatusOr<Session::View> Session::Get(int unit) {
  absl::MutexLock lock(&mutex_);
  const BlockedTimer timer(clock_, &statistics_.get_wait_seconds);
  ++statistics_.gets;
  const std::string& name = layout_.unit(unit).name;
  const auto there = [this, unit]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !cancelled_.ok() || fetches_->resident(unit) ||
           fetches_->state(unit) == FetchTable::State::kFailed || StartFetch(unit);
  };
  const bool from_files = layout_.unit(unit).from_files;
  const absl::Duration limit = from_files ? options_.file_timeout : options_.get_timeout;
  if (!AwaitFor(&mutex_, absl::Condition(&there), limit)) {
    return ResourceExhausted("get {}: all {} buffers of its size are in use for {}", name,
                             view_buffers_.buffers(unit), absl::FormatDuration(limit));
  }
  SHOAL_RETURN_IF_ERROR(cancelled_);
  fetches_->AddUse(unit);
  const auto done = [this, unit]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const FetchTable::State state = fetches_->state(unit);
    return state == FetchTable::State::kReady || state == FetchTable::State::kFailed ||
           !cancelled_.ok();
  };
  absl::Status error;
  if (!AwaitFor(&mutex_, absl::Condition(&done), limit)) {
    error = DeadlineExceeded(
        "get {} (version {}) from {}: no answer within {}", name, fetches_->version(unit),
        from_files ? "the model's files" : fetches_->Missing(unit), absl::FormatDuration(limit));
  } else if (fetches_->state(unit) == FetchTable::State::kFailed) {
    error = fetches_->error(unit);
  } else if (fetches_->state(unit) != FetchTable::State::kReady) {
    error = cancelled_;
  }
  if (!error.ok()) {
    fetches_->DropUse(unit);
    return error;
  }
  return View{.data = fetches_->view(unit),
              .count = layout_.unit(unit).count,
              .last_server = fetches_->last_server(unit)};
}

void Session::Release(int unit) {
  absl::MutexLock lock(&mutex_);
  fetches_->DropUse(unit);
}

bool Session::Acknowledged(int64_t pack) const {
  absl::MutexLock lock(&mutex_);
  return pushes_->acknowledged_pack(pack);
}

absl::Status Session::Enqueue(int unit, const void* gradient,
                              const plan::Contribution& contribution, GradientReturn* done) {
  SHOAL_CHECK(!options_.read_only);
  if (layout_.unit(unit).frozen) {
    return InvalidArgument("push {}: it is frozen (train.groups) and takes no gradient",
                           layout_.unit(unit).name);
  }
  absl::MutexLock lock(&mutex_);
  const BlockedTimer timer(clock_, &statistics_.push_wait_seconds);
  SHOAL_RETURN_IF_ERROR(Failure());
  bool taken = false;
  const auto try_it = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    taken = taken || (Failure().ok() && pushes_->Enqueue(unit, gradient, contribution, done));
    return taken || !Failure().ok();
  };
  if (!AwaitFor(&mutex_, absl::Condition(&try_it), options_.push_timeout)) {
    return DeadlineExceeded("push {}: no credit within {}; waiting to push {}",
                            layout_.unit(unit).name, absl::FormatDuration(options_.push_timeout),
                            pushes_->Oldest());
  }
  if (!taken) {
    return Failure();
  }
  statistics_.pushes += static_cast<int64_t>(layout_.unit(unit).partitions.size());
  Wake(unit);
  return absl::OkStatus();
}

absl::Status Session::AwaitTaken(int unit, const void* gradient) {
  absl::MutexLock lock(&mutex_);
  const BlockedTimer timer(clock_, &statistics_.push_wait_seconds);
  const auto taken = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !pushes_->waits(gradient) || !Failure().ok();
  };
  const bool in_time = AwaitFor(&mutex_, absl::Condition(&taken), options_.push_timeout);
  if (!pushes_->waits(gradient)) {
    return Failure();
  }
  const std::string oldest = pushes_->Oldest();
  pushes_->Withdraw(gradient);
  const auto let_go = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !pushes_->waits(gradient);
  };
  mutex_.Await(absl::Condition(&let_go));  // bounded: an I/O thread copies one partition
  return in_time ? Failure()
                 : DeadlineExceeded("push {}: no credit within {}; waiting to push {}",
                                    layout_.unit(unit).name,
                                    absl::FormatDuration(options_.push_timeout), oldest);
}

absl::StatusOr<std::vector<int64_t>> Session::Finish(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const BlockedTimer timer(clock_, &statistics_.push_wait_seconds);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pushes_->outstanding() == 0 || !Failure().ok();
  };
  const bool in_time = AwaitFor(&mutex_, absl::Condition(&done), timeout);
  SHOAL_RETURN_IF_ERROR(Failure());
  if (!in_time) {
    return DeadlineExceeded("push of {}: not acknowledged within {} ({} pushes are not)",
                            pushes_->Oldest(), absl::FormatDuration(timeout),
                            pushes_->outstanding());
  }
  std::vector<int64_t> acknowledged;
  for (int server = 0; server < layout_.servers; ++server) {
    acknowledged.push_back(pushes_->acknowledged(server));
  }
  return acknowledged;
}

int64_t Session::ArriveAtBarrier() {
  absl::MutexLock lock(&mutex_);
  ++barriers_.arrived;
  ++statistics_.barriers;
  WakeServer(kBarrierServer);
  return barriers_.arrived;
}

absl::Status Session::CheckAttempt() const {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(Failure());
  return barriers_.ended ? Aborted("the attempt ended while this worker was in it")
                         : absl::OkStatus();
}

bool Session::LacksServer() const {
  absl::MutexLock lock(&mutex_);
  return std::ranges::any_of(
      links_, [](const Link& link) { return link.state != Link::State::kOpen && !link.try_again; });
}

absl::Status Session::WaitAtBarrier(int64_t number) {
  absl::MutexLock lock(&mutex_);
  const BlockedTimer timer(clock_, &statistics_.barrier_wait_seconds);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return barriers_.over >= number || barriers_.ended || !Failure().ok();
  };
  ++barriers_.waiting;
  const bool in_time = AwaitFor(&mutex_, absl::Condition(&done), options_.barrier_timeout);
  --barriers_.waiting;
  if (barriers_.over >= number) {
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(Failure());
  if (in_time) {
    return Aborted("the attempt ended while this worker waited for the others at a layer");
  }
  return DeadlineExceeded(
      "barrier {} of the step: not all workers have arrived at it within {}; {} are over", number,
      absl::FormatDuration(options_.barrier_timeout), barriers_.over);
}

void Session::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (cancelled_.ok()) {
    cancelled_ = why;
  }
}

ClientStatistics Session::statistics() const {
  ClientStatistics statistics;
  {
    absl::MutexLock lock(&mutex_);
    statistics = statistics_;
    statistics.backup_fallbacks = fetches_ == nullptr ? 0 : fetches_->fallbacks();
  }
  for (size_t i = 0; i < io_.size(); ++i) {
    statistics.transports[i].memory = io_[i].transport->statistics();
  }
  return statistics;
}

}  // namespace shoal::client
