// Makes connections, at the start and after a break.
#include <algorithm>
#include <utility>

#include "client/session.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::client {
namespace {

constexpr absl::Duration kLongestDelay = absl::Seconds(1);

// Whether the same request may succeed later. After a refusal (fenced, another generation) it
// cannot.
bool IsTransient(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Duration Session::Delay(int failures) {
  const absl::Duration full =
      std::min(options_.reconnect_delay * (1 << std::min(failures, 10)), kLongestDelay);
  return full * (0.5 + random_.Uniform() / 2);
}

absl::StatusOr<std::unique_ptr<DataConnection>> Session::ConnectFirst(int server,
                                                                      absl::Time deadline) {
  absl::Status last;
  for (int failures = 0;; ++failures) {
    if (options_.check) {
      SHOAL_RETURN_IF_ERROR(options_.check());
    }
    const absl::Duration left = deadline - clock_.Now();
    auto connection = connections_->Connect(
        server, std::vector<bool>(io_.size(), false),
        std::clamp(left, absl::Milliseconds(10), absl::Duration(options_.handshake_timeout)));
    if (connection.ok()) {
      return connection;
    }
    if (options_.check) {
      SHOAL_RETURN_IF_ERROR(options_.check());
    }
    // A try cut short by the deadline says less than the one before it.
    if (last.ok() || !absl::IsDeadlineExceeded(connection.status())) {
      last = connection.status();
    }
    if (!IsTransient(connection.status()) || clock_.Now() >= deadline) {
      return Annotate(last, fmt::format("connect to {}", ServerName(server)));
    }
    clock_.SleepFor(Delay(failures));
  }
}

absl::Status Session::Adopt(int server, const std::vector<bool>& left_out,
                            std::unique_ptr<DataConnection> connection) {
  if (connection->wire_type != wire_type_) {
    return Internal("{} serves weights as {}, other servers as {}", ServerName(server),
                    Name(connection->wire_type), Name(wire_type_));
  }
  if (!options_.read_only) {
    SHOAL_RETURN_IF_ERROR(pushes_->Grant(server, *connection, transports_));
  }
  const size_t index = connection->transport;
  Io& io = io_[index];
  const uint64_t id = connection->connection->id();
  ++statistics_.transports[index].connections;
  if (index == 0) {
    LogInfo("{}: connected over {}{}", ServerName(server), io.transport->name(),
            connection->gpu.empty() ? "" : ", reaching its memory in " + connection->gpu);
  } else {
    ++statistics_.fallbacks;
    LogWarning("{}: connected over {}, not {}: {}", ServerName(server), io.transport->name(),
               transports_[0]->name(), connection->reason);
  }
  statistics_.connections[static_cast<size_t>(server)] = {
      .transport = std::string(io.transport->name()),
      .reason = connection->reason,
      .weights_in_gpu = connection->weights_in_gpu,
      .payloads_in_gpu = connection->payloads_in_gpu()};
  Link& adopted = link(server);
  for (const size_t rests :
       adopted.policy.OnConnected(index, left_out, connection->not_completed, clock_.Now())) {
    CountRest(server, rests);
  }
  if (adopted.connected_before && adopted.last_transport != index) {
    ++statistics_.switches;
    LogInfo("{}: went over from {} to {}", ServerName(server),
            transports_[adopted.last_transport]->name(), io.transport->name());
  }
  adopted.connected_before = true;
  adopted.last_transport = index;
  adopted.try_again = false;
  adopted.connection = std::move(connection);
  adopted.state = Link::State::kOpen;
  adopted.last_scan = clock_.Now();
  if (std::erase(io.closed_early, id) > 0) {
    adopted.state = Link::State::kConnecting;
    adopted.error = Unavailable("the connection closed as soon as it was made");
    pushes_->Requeue(server);
    adopted.connection = nullptr;
    CountBreak(server, index);
  } else {
    fetches_->RegainServer(server);
  }
  if (!std::exchange(io.used, true)) {
    use_(index);
  }
  io.queue->Wake();
  return absl::OkStatus();
}

void Session::CountBreak(int server, size_t transport) {
  if (link(server).policy.OnBroken(transport, clock_.Now())) {
    CountRest(server, transport);
  }
}

void Session::CountRest(int server, size_t transport) {
  ++statistics_.transports[transport].rests;
  LogWarning("{}: {} fails and is left out for {}", ServerName(server),
             transports_[transport]->name(),
             absl::FormatDuration(absl::Ceil(
                 link(server).policy.rests_until(transport) - clock_.Now(), absl::Seconds(1))));
}

int Session::NextToConnect(absl::Time now, absl::Time* next) const {
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].state == Link::State::kConnecting) {
      if (links_[i].not_before <= now) {
        return static_cast<int>(i);
      }
      *next = std::min(*next, links_[i].not_before);
    }
  }
  return -1;
}

int Session::LinkToConnect(absl::Time* next) const {
  absl::MutexLock lock(&mutex_);
  return NextToConnect(clock_.Now(), next);
}

int Session::AwaitLinkToConnect() {
  absl::MutexLock lock(&mutex_);
  int server = -1;
  while (!stopping_ && server < 0) {
    absl::Time next = clock_.Now() + absl::Seconds(1);
    NextToConnect(clock_.Now(), &next);
    const auto work = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      absl::Time unused = absl::InfiniteFuture();
      server = NextToConnect(clock_.Now(), &unused);
      return stopping_ || server >= 0;
    };
    AwaitFor(&mutex_, absl::Condition(&work), next - clock_.Now());
  }
  return stopping_ ? -1 : server;
}

void Session::Reconnect(int server) {
  std::vector<bool> left_out;
  {
    absl::MutexLock lock(&mutex_);
    left_out = link(server).policy.LeftOut(clock_.Now());
  }
  auto connection = connections_->Connect(server, left_out, options_.handshake_timeout);
  absl::MutexLock lock(&mutex_);
  ++statistics_.reconnects;
  absl::Status status = connection.status();
  if (connection.ok()) {
    status = Adopt(server, left_out, *std::move(connection));
    if (status.ok()) {
      return;
    }
  } else {
    link(server).policy.OnNoneConnected();
  }
  Link& lost = link(server);
  lost.try_again = false;
  ++lost.failures;
  if (IsTransient(status) && lost.failures < options_.max_reconnects) {
    lost.not_before = clock_.Now() + Delay(lost.failures);
    return;
  }
  lost.state = Link::State::kFailed;
  lost.error = absl::Status(
      status.code(),
      fmt::format("{} is lost: the connection broke ({}) and could not be recreated "
                  "in {} tries: {}",
                  ServerName(server), Message(lost.error), lost.failures, Message(status)));
  LogError("{}", Message(lost.error));
  fetches_->FailServer(server, lost.error);
}

}  // namespace shoal::client
