#include "client/parameter_client.h"

#include <algorithm>

#include "client/registered_memory.h"
#include "client/session.h"
#include "client/session_threads.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::client {

class ParameterClient::Core {
 public:
  Core(const ClientOptions& options, const Layout& layout, ServerClient* server_client,
       const std::vector<transport::Transport*>& transports, Clock& clock)
      : session(options, layout, server_client, transports, clock),
        threads_(&session, transports.size(), clock) {}

  absl::Status Start() { return threads_.Start(); }

  Session session;

 private:
  SessionThreads threads_;
};

absl::StatusOr<std::unique_ptr<ParameterClient>> ParameterClient::Create(
    const ClientOptions& options, const std::vector<plan::UnitSpec>& units,
    const std::vector<plan::PartitionSpec>& partitions, const plan::ShardMap& map, int servers,
    ServerClient* server_client, const std::vector<transport::Transport*>& transports,
    Clock& clock) {
  if (transports.empty()) {
    return InvalidArgument("no transport is enabled; service.transports needs at least one");
  }
  SHOAL_ASSIGN_OR_RETURN(Layout layout,
                         MakeLayout(units, partitions, map, servers, options.ranges));
  std::vector<transport::Transport*> usable = transports;
  while (true) {
    auto core = std::make_unique<Core>(options, layout, server_client, usable, clock);
    const absl::Status started = core->Start();
    if (started.ok()) {
      return std::unique_ptr<ParameterClient>(new ParameterClient(std::move(core)));
    }
    // Continues without a transport that cannot register the buffers (locked memory, device
    // limits).
    const auto refusing =
        std::ranges::find(usable, RefusedBy(started), &transport::Transport::name);
    if (refusing == usable.end() || usable.size() == 1) {
      return started;
    }
    LogWarning("goes on without {}", Message(started));
    core.reset();
    usable.erase(refusing);
  }
}

ParameterClient::ParameterClient(std::unique_ptr<Core> core) : core_(std::move(core)) {}
ParameterClient::~ParameterClient() = default;

bool ParameterClient::Follow(const std::vector<plan::UnitSpec>& units,
                             const std::vector<plan::PartitionSpec>& partitions,
                             const plan::ShardMap& map) {
  Session& session = core_->session;
  auto layout =
      MakeLayout(units, partitions, map, session.layout().servers, session.options().ranges);
  return layout.ok() && session.Follow(*std::move(layout));
}

absl::Status ParameterClient::BeginStep(int64_t step, int64_t attempt, int64_t generation) {
  if (generation != core_->session.layout().generation) {
    return FailedPrecondition(
        "step {} is of shard map generation {}, this client has generation {}", step, generation,
        core_->session.layout().generation);
  }
  return core_->session.Begin(step - 1, step, attempt);
}

absl::Status ParameterClient::BeginRead(int64_t version) {
  return core_->session.Begin(version, 0, 0);
}
int64_t ParameterClient::published() const { return core_->session.published(); }
bool ParameterClient::Prefetch(int unit) { return core_->session.Prefetch(unit); }
absl::StatusOr<ParameterClient::View> ParameterClient::Get(int unit) {
  return core_->session.Get(unit);
}
void ParameterClient::Release(int unit) { core_->session.Release(unit); }

absl::Status ParameterClient::Push(int unit, std::span<const float> gradient,
                                   const plan::Contribution& contribution) {
  SHOAL_RETURN_IF_ERROR(PushAsync(unit, gradient, contribution, nullptr));
  return core_->session.AwaitTaken(unit, gradient.data());
}

absl::Status ParameterClient::PushAsync(int unit, std::span<const float> gradient,
                                        const plan::Contribution& contribution,
                                        GradientReturn* done) {
  SHOAL_CHECK(!core_->session.options().push_in_place);
  SHOAL_CHECK(static_cast<int64_t>(gradient.size()) == core_->session.layout().unit(unit).count);
  return core_->session.Enqueue(unit, gradient.data(), contribution, done);
}

absl::Status ParameterClient::PushInPlace(int unit, std::span<const std::byte> gradient,
                                          const plan::Contribution& contribution,
                                          GradientReturn* done) {
  const ClientOptions& options = core_->session.options();
  SHOAL_CHECK(options.push_in_place);
  SHOAL_CHECK(static_cast<int64_t>(gradient.size()) ==
              core_->session.layout().unit(unit).count * SizeOf(options.gradient_type));
  return core_->session.Enqueue(unit, gradient.data(), contribution, done);
}

bool ParameterClient::Acknowledged(int64_t pack) const { return core_->session.Acknowledged(pack); }

int64_t ParameterClient::ArriveAtBarrier() { return core_->session.ArriveAtBarrier(); }
absl::Status ParameterClient::WaitAtBarrier(int64_t number) {
  return core_->session.WaitAtBarrier(number);
}
absl::Status ParameterClient::CheckAttempt() const { return core_->session.CheckAttempt(); }
bool ParameterClient::LacksServer() const { return core_->session.LacksServer(); }

absl::StatusOr<std::vector<int64_t>> ParameterClient::Finish(absl::Duration timeout) {
  return core_->session.Finish(timeout);
}

void ParameterClient::Cancel(const absl::Status& why) { core_->session.Cancel(why); }
ClientStatistics ParameterClient::statistics() const { return core_->session.statistics(); }
int64_t ParameterClient::buffer_bytes() const { return core_->session.buffer_bytes(); }
DType ParameterClient::wire_type() const { return core_->session.wire_type(); }

}  // namespace shoal::client
