#include "core/transport/testing/conformance.h"

#include <cstdlib>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {

Side::Side(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
  auto queue = transport_->CreateQueue();
  SHOAL_CHECK(queue.ok());
  queue_ = *std::move(queue);
}

std::shared_ptr<Region> Side::Allocate(int64_t bytes, Access access) {
  auto region = transport_->Allocate(bytes, access);
  SHOAL_CHECK(region.ok());
  return *std::move(region);
}

ConnectionOptions Side::Options(std::vector<std::shared_ptr<Region>> exposed, std::string peer) {
  ConnectionOptions options;
  options.queue = queue_.get();
  options.exposed = std::move(exposed);
  options.peer = std::move(peer);
  return options;
}

void Side::Note(const Event& event) {
  EXPECT_FALSE(closed_.contains(event.connection)) << "an event after kClosed";
  if (event.kind == Event::Kind::kClosed) {
    closed_.insert(event.connection);
  }
}

std::vector<Event> Side::Collect(size_t count, absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  std::vector<Event> events;
  while (events.size() < count && RealClock().Now() < deadline) {
    Event buffer[7];
    const size_t polled = queue_->Poll({buffer, std::min<size_t>(7, count - events.size())});
    for (size_t i = 0; i < polled; ++i) {
      Note(buffer[i]);
      events.push_back(std::move(buffer[i]));
    }
    if (polled == 0) {
      queue_->Wait(absl::Milliseconds(100));
    }
  }
  return events;
}

std::vector<Event> Side::CollectUntilClosed(uint64_t connection, absl::Duration timeout) {
  const absl::Time deadline = RealClock().Now() + timeout;
  std::vector<Event> events;
  while (RealClock().Now() < deadline) {
    for (Event& event : Collect(1, deadline - RealClock().Now())) {
      events.push_back(std::move(event));
      if (events.back().kind == Event::Kind::kClosed && events.back().connection == connection) {
        return events;
      }
    }
  }
  ADD_FAILURE() << "no kClosed within " << absl::FormatDuration(timeout);
  return events;
}

Pair Connect(Side& connecting, const ConnectionOptions& connecting_options, Side& accepting,
             const ConnectionOptions& accepting_options) {
  auto connector = connecting.transport().Offer(connecting_options);
  SHOAL_CHECK(connector.ok());
  auto acceptance = accepting.transport().Accept((*connector)->offer(), accepting_options);
  EXPECT_TRUE(acceptance.ok()) << Describe(acceptance.status());
  SHOAL_CHECK(acceptance.ok());
  auto connection = (*connector)->Complete(acceptance->answer);
  EXPECT_TRUE(connection.ok()) << Describe(connection.status());
  SHOAL_CHECK(connection.ok());
  return {*std::move(connection), std::move(acceptance->connection)};
}

namespace {

absl::Status Completion(Side& side, Event::Kind kind, uint64_t id) {
  const std::vector<Event> events = side.Collect(1);
  if (events.size() != 1) {
    return DeadlineExceeded("no completion");
  }
  EXPECT_EQ(events[0].kind, kind);
  EXPECT_EQ(events[0].operation, id);
  return events[0].status;
}

}  // namespace

absl::Status ReadNow(Side& side, Connection& connection, const ReadOperation& operation) {
  SHOAL_RETURN_IF_ERROR(connection.PostReads({&operation, 1}));
  return Completion(side, Event::Kind::kReadDone, operation.id);
}

absl::Status WriteNow(Side& side, Connection& connection, const WriteOperation& operation) {
  SHOAL_RETURN_IF_ERROR(connection.PostWrites({&operation, 1}));
  return Completion(side, Event::Kind::kWriteDone, operation.id);
}

void FillRandom(std::span<std::byte> bytes, Random& random) {
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.Next());
  }
}

uint64_t TestSeed() {
  const char* given = std::getenv("SHOAL_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20240607;
  testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

Side& ConformanceTest::a() {
  if (a_ == nullptr) {
    a_ = NewSide();
  }
  return *a_;
}

Side& ConformanceTest::b() {
  if (b_ == nullptr) {
    b_ = NewSide();
  }
  return *b_;
}

}  // namespace shoal::transport
