#include "server/copy/state_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/transport/negotiate.h"
#include "server/copy/state_copy.h"

namespace shoal::server {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kReadTimeout = absl::Seconds(10);  // of a piece
// State comes in answers for so long after a connection has failed: at first, and at most.
constexpr absl::Duration kRest = absl::Seconds(5);
constexpr absl::Duration kLongestRest = absl::Minutes(5);
constexpr size_t kEventsAtOnce = 16;

}  // namespace

// A connection to the giver, and for each slot of its memory one of this server's.
class StateLink::Slots {
 public:
  static absl::StatusOr<std::shared_ptr<Slots>> Connect(const Options& options,
                                                        const GiverCalls& calls);

  const std::string& id() const { return id_; }
  int Take() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(int slot) ABSL_LOCKS_EXCLUDED(mutex_);
  // What the giver has put into that slot.
  absl::Status Collect(int slot, std::span<float> out) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connected {  // destroyed from the end
    std::unique_ptr<transport::EventQueue> queue;
    std::unique_ptr<transport::Connector> connector;
    std::unique_ptr<transport::Connection> connection;
  };
  Slots(std::string id, Clock& clock, std::shared_ptr<transport::Region> landing,
        Connected connected)
      : id_(std::move(id)),
        clock_(clock),
        landing_(std::move(landing)),
        connected_(std::move(connected)) {}

  bool HasFree() const { return std::ranges::find(taken_, false) != taken_.end(); }
  absl::Status AwaitRead(uint64_t operation);

  const std::string id_;
  Clock& clock_;
  const std::shared_ptr<transport::Region> landing_;
  Connected connected_;
  absl::Mutex mutex_;  // held while something is read
  std::array<bool, kReadsAtOnce> taken_ ABSL_GUARDED_BY(mutex_) = {};
  uint64_t operation_ ABSL_GUARDED_BY(mutex_) = 0;  // the newest
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);    // of a read; then there are no more
};

absl::StatusOr<std::shared_ptr<StateLink::Slots>> StateLink::Slots::Connect(
    const Options& options, const GiverCalls& calls) {
  const std::vector<std::string> names = transport::NamesOf(options.transports);
  const std::string id = SecureToken();
  std::vector<Connected> offered(names.size());
  const auto offer = [&](size_t i) -> absl::StatusOr<std::string> {
    Connected& one = offered[i];
    one.connector.reset();
    SHOAL_ASSIGN_OR_RETURN(one.queue, options.transports[i]->CreateQueue());
    SHOAL_ASSIGN_OR_RETURN(one.connector,
                           options.transports[i]->Offer({.queue = one.queue.get(),
                                                         .peer = options.giver,
                                                         .handshake_timeout = kConnectTimeout}));
    return one.connector->offer();
  };
  const auto ask = [&](const std::vector<transport::NamedOffer>& offers)
      -> absl::StatusOr<transport::TakenOffer> {
    proto::ConnectStateRequest request;
    request.set_job_id(options.job_id);
    request.set_run(options.run);
    request.set_reader(id);
    request.set_name(options.reader);
    transport::WriteOffers(offers, *request.mutable_offers());
    SHOAL_ASSIGN_OR_RETURN(const proto::ConnectStateReply reply, calls.connect(request));
    return transport::TakenOffer{reply.transport(), reply.answer(), reply.reason()};
  };
  const auto complete = [&](size_t i, const std::string& answer) -> absl::Status {
    SHOAL_ASSIGN_OR_RETURN(offered[i].connection, offered[i].connector->Complete(answer));
    return absl::OkStatus();
  };
  SHOAL_ASSIGN_OR_RETURN(const transport::Negotiated taken,
                         transport::Negotiate({.peer = options.giver,
                                               .transports = names,
                                               .left_out = std::vector<bool>(names.size(), false),
                                               .offer = offer,
                                               .ask = ask,
                                               .complete = complete}));
  Connected& connected = offered[taken.transport];
  const std::vector<int64_t> regions = connected.connection->remote_region_sizes();
  if (regions.empty() || regions.front() < kReadsAtOnce * kStateSlotBytes) {
    return Internal("{} has no memory from which its state could be read", options.giver);
  }
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<transport::Region> landing,
                         options.transports[taken.transport]->Allocate(
                             kReadsAtOnce * kStateSlotBytes, transport::Access::kLocal));
  LogInfo("reads state of {} over {}{}{}", options.giver, names[taken.transport],
          taken.reason.empty() ? "" : ", as ", taken.reason);
  return std::shared_ptr<Slots>(
      new Slots(id, *options.clock, std::move(landing), std::move(connected)));
}

int StateLink::Slots::Take() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Slots::HasFree));
  const auto free = std::ranges::find(taken_, false);
  *free = true;
  return static_cast<int>(free - taken_.begin());
}

void StateLink::Slots::GiveBack(int slot) {
  absl::MutexLock lock(&mutex_);
  taken_[static_cast<size_t>(slot)] = false;
}

absl::Status StateLink::Slots::Collect(int slot, std::span<float> out) {
  const auto into =
      landing_->bytes().subspan(static_cast<size_t>(slot * kStateSlotBytes), out.size_bytes());
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(failure_);
    const transport::ReadOperation read = {
        .id = ++operation_, .region = 0, .offset = slot * kStateSlotBytes, .into = into};
    failure_ = connected_.connection->PostReads({&read, 1});
    failure_.Update(failure_.ok() ? AwaitRead(read.id) : absl::OkStatus());
    SHOAL_RETURN_IF_ERROR(failure_);
  }
  std::memcpy(out.data(), into.data(), into.size());
  return absl::OkStatus();
}

absl::Status StateLink::Slots::AwaitRead(uint64_t operation) {
  const absl::Time deadline = clock_.Now() + kReadTimeout;
  std::array<transport::Event, kEventsAtOnce> events;
  while (true) {
    const size_t count = connected_.queue->Poll(events);
    for (const transport::Event& event : std::span(events).first(count)) {
      if (event.kind == transport::Event::Kind::kClosed) {
        return Unavailable("the connection is closed{}{}", event.status.ok() ? "" : ": ",
                           Message(event.status));
      }
      if (event.kind == transport::Event::Kind::kReadDone && event.operation == operation) {
        return event.status;
      }
    }
    const absl::Duration left = deadline - clock_.Now();
    if (left <= absl::ZeroDuration()) {
      return DeadlineExceeded("no answer in {}", absl::FormatDuration(kReadTimeout));
    }
    if (count == 0) {
      connected_.queue->Wait(left);
    }
  }
}

StateLink::StateLink(Options options, GiverCalls calls)
    : options_(std::move(options)), calls_(std::move(calls)), rest_(kRest) {}

StateLink::~StateLink() = default;

std::shared_ptr<StateLink::Slots> StateLink::FindOrConnect() {
  {
    absl::MutexLock lock(&mutex_);
    if (slots_ != nullptr || connecting_ || options_.clock->Now() < try_again_) {
      return slots_;
    }
    connecting_ = true;
  }
  absl::StatusOr<std::shared_ptr<Slots>> connected = Slots::Connect(options_, calls_);
  absl::MutexLock lock(&mutex_);
  connecting_ = false;
  if (connected.ok()) {
    slots_ = *std::move(connected);
    connected_ = options_.clock->Now();
  } else {
    Rest(connected.status());
  }
  return slots_;
}

void StateLink::Rest(const absl::Status& why) {
  const absl::Time now = options_.clock->Now();
  LogWarning("state of {} comes over gRPC for {}: {}", options_.giver, absl::FormatDuration(rest_),
             Message(why));
  try_again_ = now + rest_;
  rest_ = std::min(2 * rest_, kLongestRest);
}

void StateLink::Drop(const std::shared_ptr<Slots>& slots, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (slots_ == slots) {
    slots_ = nullptr;
    rest_ = options_.clock->Now() - connected_ > kLongestRest ? kRest : rest_;  // it was a good one
    Rest(why);
  }
}

absl::Status StateLink::Read(const proto::ReadStateRequest& request, std::span<float> out) {
  const std::shared_ptr<Slots> slots = FindOrConnect();
  if (slots == nullptr) {
    return TakeElements(calls_.read(request), out);
  }
  const int slot = slots->Take();
  const absl::Cleanup give_back = [&] { slots->GiveBack(slot); };
  proto::ReadStateRequest asked = request;
  asked.set_reader(slots->id());
  asked.set_slot(slot);
  const absl::StatusOr<proto::ReadStateReply> reply = calls_.read(asked);
  if (!reply.ok()) {
    Drop(slots, reply.status());  // what is late must find no slot of another piece
    return reply.status();
  }
  if (!reply->elements().empty()) {
    Drop(slots, Unavailable("it knows no such connection"));
    return TakeElements(reply, out);
  }
  absl::Status collected = slots->Collect(slot, out);
  if (collected.ok()) {
    collected = CheckElements(out, reply->hash());
  }
  if (collected.ok()) {
    return collected;
  }
  Drop(slots, collected);
  return TakeElements(calls_.read(request), out);
}

}  // namespace shoal::server
