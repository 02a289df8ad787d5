// The conformance suite over the simulated fabric. The suite's threads block and sleep, so here
// the loop keeps to real time: whoever polls or waits runs what is due, one thread at a time.
// Tests that fork are left out, since the fabric is memory of one process.
#include "tests/simulation/data/sim_fabric.h"

#include <algorithm>
#include <deque>
#include <type_traits>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/testing/conformance.h"

namespace shoal::simulation {
namespace {

// The processes of one test. What follows it holds `mutex` in all its calls.
struct World {
  SimProcess& NewProcess() {
    const int id = static_cast<int>(processes.size());
    SimProcess& process = processes.emplace_back(context.loop, id, fmt::format("process-{}", id));
    process.Begin();
    return process;
  }
  void RunDue() {
    bool caught_up = false;
    context.loop.At(ToNanoseconds(RealClock().Now() - began), [&] { caught_up = true; });
    while (!caught_up) {
      context.loop.RunNext();
    }
  }
  // When the next thing is due.
  absl::Time Next() const {
    const Nanoseconds next = context.loop.NextTime();
    return next == kNever ? absl::InfiniteFuture() : began + absl::Nanoseconds(next);
  }

  absl::Mutex mutex;
  absl::CondVar changed;  // what is due, or whose turn it is
  SimContext context{1, Faults::FromList(1, {}), /*print=*/false};
  SimFabric fabric{context};
  std::deque<SimProcess> processes;
  const absl::Time began = RealClock().Now();
};

class RealTimeQueue final : public transport::EventQueue {
 public:
  RealTimeQueue(World& world, bool& has_turn, std::unique_ptr<transport::EventQueue> inner)
      : world_(world), has_turn_(has_turn), inner_(std::move(inner)) {}

  size_t Poll(std::span<transport::Event> events) override {
    const absl::MutexLock lock(&world_.mutex);
    world_.RunDue();
    return inner_->Poll(events);
  }
  bool Wait(absl::Duration timeout) override {
    const absl::Time deadline = RealClock().Now() + timeout;
    const absl::MutexLock lock(&world_.mutex);
    for (;;) {
      world_.RunDue();
      if (std::exchange(has_turn_, false) || inner_->Wait(absl::ZeroDuration())) {
        return true;
      }
      if (RealClock().Now() >= deadline) {
        return false;
      }
      world_.changed.WaitWithDeadline(&world_.mutex, std::min(deadline, world_.Next()));
    }
  }
  void Wake() override {
    const absl::MutexLock lock(&world_.mutex);
    inner_->Wake();
    world_.changed.SignalAll();
  }
  transport::EventQueue* inner() { return inner_.get(); }

 private:
  World& world_;
  bool& has_turn_;
  const std::unique_ptr<transport::EventQueue> inner_;
};

class RealTimeConnection final : public transport::Connection {
 public:
  RealTimeConnection(World& world, std::unique_ptr<transport::Connection> inner)
      : world_(world), inner_(std::move(inner)) {}
  ~RealTimeConnection() override {
    Change([this] { inner_.reset(); });
  }

  uint64_t id() const override { return inner_->id(); }
  const std::string& peer() const override { return inner_->peer(); }
  std::vector<int64_t> remote_region_sizes() const override {
    const absl::MutexLock lock(&world_.mutex);
    return inner_->remote_region_sizes();
  }
  absl::Status PostReads(std::span<const transport::ReadOperation> operations) override {
    return Change([&] { return inner_->PostReads(operations); });
  }
  absl::Status PostWrites(std::span<const transport::WriteOperation> operations) override {
    return Change([&] { return inner_->PostWrites(operations); });
  }
  void Close() override {
    Change([this] { inner_->Close(); });
  }

 private:
  template <typename Action>
  std::invoke_result_t<Action> Change(const Action& action) {
    const absl::MutexLock lock(&world_.mutex);
    world_.RunDue();
    world_.changed.SignalAll();
    return action();
  }

  World& world_;
  std::unique_ptr<transport::Connection> inner_;
};

class RealTimeConnector final : public transport::Connector {
 public:
  RealTimeConnector(World& world, std::unique_ptr<transport::Connector> inner)
      : world_(world), inner_(std::move(inner)) {}
  ~RealTimeConnector() override {
    const absl::MutexLock lock(&world_.mutex);
    inner_.reset();
  }

  const std::string& offer() const override { return inner_->offer(); }
  absl::StatusOr<std::unique_ptr<transport::Connection>> Complete(
      const std::string& answer) override {
    const absl::MutexLock lock(&world_.mutex);
    world_.RunDue();
    SHOAL_ASSIGN_OR_RETURN(auto connection, inner_->Complete(answer));
    return std::make_unique<RealTimeConnection>(world_, std::move(connection));
  }

 private:
  World& world_;
  std::unique_ptr<transport::Connector> inner_;
};

class RealTimeTransport final : public transport::Transport {
 public:
  explicit RealTimeTransport(std::shared_ptr<World> world)
      : world_(std::move(world)),
        inner_(world_->fabric.MakeTransport(
            world_->NewProcess(),
            [this] {
              has_turn_ = true;
              world_->changed.SignalAll();
            },
            [] {})) {}

  std::string_view name() const override { return inner_->name(); }
  const transport::Capabilities& capabilities() const override { return inner_->capabilities(); }
  absl::StatusOr<std::unique_ptr<transport::EventQueue>> CreateQueue() override {
    SHOAL_ASSIGN_OR_RETURN(auto queue, inner_->CreateQueue());
    return std::make_unique<RealTimeQueue>(*world_, has_turn_, std::move(queue));
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Allocate(int64_t bytes,
                                                              transport::Access access) override {
    return inner_->Allocate(bytes, access);
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Register(std::span<std::byte> memory,
                                                              transport::Access access) override {
    return inner_->Register(memory, access);
  }
  absl::StatusOr<std::unique_ptr<transport::Connector>> Offer(
      const transport::ConnectionOptions& options) override {
    const absl::MutexLock lock(&world_->mutex);
    SHOAL_ASSIGN_OR_RETURN(auto connector, inner_->Offer(OfInner(options)));
    return std::make_unique<RealTimeConnector>(*world_, std::move(connector));
  }
  absl::StatusOr<transport::Acceptance> Accept(
      const std::string& offer, const transport::ConnectionOptions& options) override {
    const absl::MutexLock lock(&world_->mutex);
    world_->RunDue();
    SHOAL_ASSIGN_OR_RETURN(transport::Acceptance acceptance,
                           inner_->Accept(offer, OfInner(options)));
    acceptance.connection =
        std::make_unique<RealTimeConnection>(*world_, std::move(acceptance.connection));
    return acceptance;
  }

 private:
  static transport::ConnectionOptions OfInner(transport::ConnectionOptions options) {
    auto* const queue = static_cast<RealTimeQueue*>(options.queue);
    options.queue = queue == nullptr ? nullptr : queue->inner();
    return options;
  }

  const std::shared_ptr<World> world_;
  bool has_turn_ = false;
  const std::unique_ptr<transport::Transport> inner_;
};

// Transports that there are at the same time reach each other.
std::unique_ptr<transport::Transport> Make() {
  static std::weak_ptr<World> newest;
  std::shared_ptr<World> world = newest.lock();
  if (world == nullptr) {
    world = std::make_shared<World>();
    newest = world;
  }
  return std::make_unique<RealTimeTransport>(std::move(world));
}

}  // namespace
}  // namespace shoal::simulation

namespace shoal::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Simulated, ConformanceTest,
                         testing::Values(TransportUnderTest{"simulated", simulation::Make,
                                                            /*in_process_only=*/true}),
                         NameOf);

}  // namespace
}  // namespace shoal::transport
