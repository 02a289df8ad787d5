// A connection of the simulated fabric (sim_fabric.h): two ends, each of a process, and the
// messages between them. What was posted is on its way even when the process that posted it ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/transport/event_buffer.h"
#include "core/transport/handshake.h"
#include "core/transport/region_table.h"
#include "core/transport/transport.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_process.h"

namespace shoal::simulation {

// Of one transport: its process takes a turn when there is something.
class SimQueue final : public transport::EventQueue {
 public:
  SimQueue(SimProcess& process, std::function<void()> turn)
      : process_(process), turn_(std::make_shared<std::function<void()>>(std::move(turn))) {}

  size_t Poll(std::span<transport::Event> events) override { return events_.Poll(events); }
  // Nobody waits: whether there is something to poll.
  bool Wait(absl::Duration timeout) override {
    SHOAL_CHECK(timeout == absl::ZeroDuration());
    return !events_.empty();
  }
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
  void Push(transport::PendingEvent event) {
    events_.Push(std::move(event));
    Wake();
  }

 private:
  SimProcess& process_;
  const std::shared_ptr<std::function<void()>> turn_;
  const std::shared_ptr<bool> scheduled_ = std::make_shared<bool>(false);
  transport::EventBuffer events_;
};

// Doorbells that wait at an end, or are on their way to it.
struct Doorbells final : public transport::PollListener {
  void Polled(transport::Event::Kind /*kind*/) override { --waiting; }
  int64_t waiting = 0;
};

class SimLink : public std::enable_shared_from_this<SimLink> {
 public:
  struct End {
    SimProcess* process = nullptr;
    SimQueue* queue = nullptr;
    std::function<void()> overlooked;
    std::string peer;
    std::shared_ptr<const transport::RegionTable> table;  // of its transport
    std::vector<std::shared_ptr<transport::Region>> exposed;
    std::vector<transport::RemoteRegion> reaches;  // once connected
    uint64_t id = 0;
    bool open = false;        // until its kClosed
    Nanoseconds arrival = 0;  // of the newest message to this end
    // Operations that are not complete.
    std::vector<std::pair<transport::Event::Kind, uint64_t>> posted;
    std::shared_ptr<transport::OutstandingOperations> outstanding;
    std::shared_ptr<Doorbells> doorbells = std::make_shared<Doorbells>();
  };

  explicit SimLink(SimContext& context) : context_(context) {}

  End& end(int side) { return ends_[static_cast<size_t>(side)]; }
  bool connected() const { return connected_; }
  // Both ends can post from now on.
  void Connect();

  absl::Status PostReads(int side, std::span<const transport::ReadOperation> operations);
  absl::Status PostWrites(int side, std::span<const transport::WriteOperation> operations);
  // In good order: the other end hears of it behind what is on its way.
  void Close(int side);
  // The peer has not connected in time.
  void Expire(int side);
  void BreakAfter(Nanoseconds delay, const char* why);
  // Nothing of that process is touched any more.
  void Forget(int side);

 private:
  struct Write {
    transport::WriteOperation operation;
    std::vector<std::byte> bytes;
  };

  // Sends a message to the other end, where `arrive` runs if it comes; else the link breaks.
  void Send(int side, std::function<void(const MessageFate&)> arrive);
  absl::Status CheckUsable(const End& end) const;
  void Complete(End& end, transport::Event::Kind kind, uint64_t id);
  void EndSide(int side, const absl::Status& operations, const absl::Status& closed);
  void Apply(int side, const Write& write, const MessageFate& fate);
  void Ring(End& end, uint32_t immediate);
  // Where that is in memory that an end exposes.
  static std::byte* At(const End& end, int region, int64_t offset) {
    return end.exposed[static_cast<size_t>(region)]->bytes().data() + offset;
  }

  SimContext& context_;
  std::array<End, 2> ends_;
  bool connected_ = false;
};

}  // namespace shoal::simulation
