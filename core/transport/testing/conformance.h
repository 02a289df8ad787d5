// The contract of transport.h as tests. Every transport and every benign decorator passes the same
// suite:
//
//   INSTANTIATE_TEST_SUITE_P(Shm, ConformanceTest,
//                            testing::Values(TransportUnderTest{"shm", MakeShm}), NameOf);
//
// The test program lists the sources of the suite, as shoal_conformance_test in CMakeLists.txt
// does. Random tests print their seed and take one from SHOAL_TEST_SEED.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/transport/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {

struct TransportUnderTest {
  std::string name;
  std::function<std::unique_ptr<Transport>()> make;
  // Reaches no other process: tests that fork are skipped.
  bool in_process_only = false;
};

inline std::string NameOf(const testing::TestParamInfo<TransportUnderTest>& info) {
  return info.param.name;
}
inline void PrintTo(const TransportUnderTest& transport, std::ostream* stream) {
  *stream << transport.name;
}

// One side of a connection, as a process would have it. Collects events and checks what must hold
// for all of them.
class Side {
 public:
  explicit Side(std::unique_ptr<Transport> transport);

  Transport& transport() { return *transport_; }
  EventQueue& queue() { return *queue_; }
  std::shared_ptr<Region> Allocate(int64_t bytes, Access access);
  ConnectionOptions Options(std::vector<std::shared_ptr<Region>> exposed = {},
                            std::string peer = "peer");

  // Polls until there are `count` events or the time is up. Fails the test on any event after
  // kClosed.
  std::vector<Event> Collect(size_t count, absl::Duration timeout = absl::Seconds(10));
  // Polls until the connection's kClosed, which is the last event returned.
  std::vector<Event> CollectUntilClosed(uint64_t connection,
                                        absl::Duration timeout = absl::Seconds(10));

 private:
  void Note(const Event& event);
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<EventQueue> queue_;
  std::set<uint64_t> closed_;
};

// Both ends of a connection.
struct Pair {
  std::unique_ptr<Connection> connector;
  std::unique_ptr<Connection> acceptor;
};
Pair Connect(Side& connecting, const ConnectionOptions& connecting_options, Side& accepting,
             const ConnectionOptions& accepting_options);

// Posts one operation and waits for its completion.
absl::Status ReadNow(Side& side, Connection& connection, const ReadOperation& operation);
absl::Status WriteNow(Side& side, Connection& connection, const WriteOperation& operation);

void FillRandom(std::span<std::byte> bytes, Random& random);
uint64_t TestSeed();

class ConformanceTest : public testing::TestWithParam<TransportUnderTest> {
 protected:
  // Made on first use, so that tests can fork before there are threads.
  Side& a();
  Side& b();
  std::unique_ptr<Side> NewSide() { return std::make_unique<Side>(GetParam().make()); }

 private:
  std::unique_ptr<Side> a_;
  std::unique_ptr<Side> b_;
};

}  // namespace shoal::transport
