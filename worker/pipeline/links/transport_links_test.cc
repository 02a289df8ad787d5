// The runtime over transports: the same as within a process, whatever is late; and with peers that
// are broken, gone or hostile.
#include "worker/pipeline/links/transport_links.h"

#include <cstring>
#include <ostream>
#include <thread>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/plan/schedule/builders/testing/random_schedule.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/fault_transport.h"
#include "core/transport/testing/forwarding_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/pipeline/testing/emulated_pipeline.h"
#include "worker/pipeline/testing/sharing_device.h"
#include "worker/pipeline/testing/transport_pipeline.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;

constexpr int64_t kMessage = 640;  // of EmulatedPipelineOptions; microbatches have up to three

struct Kind {
  std::string name;
  std::string transport;
  bool faults = false;
  bool on_devices = false;  // messages; else on the host
};

void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

TransportPipeline::MakeTransport Maker(const Kind& kind, transport::FaultOptions faults = {}) {
  return [=](int stage) {
    auto made = transport::CreateTransport(kind.transport);
    EXPECT_TRUE(made.ok()) << Describe(made.status());
    if (!kind.faults) {
      return *std::move(made);
    }
    transport::FaultOptions own = faults;
    own.seed += static_cast<uint64_t>(stage);
    return MakeFaultTransport(*std::move(made), own);
  };
}

// Completes its side of a connection a while after the peer can use it.
class LateTransport final : public transport::ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  absl::StatusOr<std::unique_ptr<transport::Connector>> Offer(
      const transport::ConnectionOptions& options) override {
    SHOAL_ASSIGN_OR_RETURN(auto connector, ForwardingTransport::Offer(options));
    return std::make_unique<LateConnector>(std::move(connector));
  }

 private:
  class LateConnector final : public transport::Connector {
   public:
    explicit LateConnector(std::unique_ptr<transport::Connector> inner)
        : inner_(std::move(inner)) {}
    const std::string& offer() const override { return inner_->offer(); }
    absl::StatusOr<std::unique_ptr<transport::Connection>> Complete(
        const std::string& answer) override {
      auto connection = inner_->Complete(answer);
      RealClock().SleepFor(absl::Milliseconds(10));
      return connection;
    }

   private:
    const std::unique_ptr<transport::Connector> inner_;
  };
};

class TransportLinksTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Transports, TransportLinksTest,
                         testing::Values(Kind{"shm", "shm"}, Kind{"tcp", "tcp"},
                                         Kind{"late_shm", "shm", true},
                                         Kind{"late_tcp", "tcp", true},
                                         Kind{"tcp_on_devices", "tcp", false, true},
                                         Kind{"late_tcp_on_devices", "tcp", true, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(TransportLinksTest, RunEverySchedule) {
  Random random(41);
  for (int round = 0; round < 8; ++round) {
    const plan::Schedule schedule =
        plan::RandomSchedule(random, {.stages = 5, .chunks = 3, .microbatches = 10});
    const int stages = schedule.shape.stages;
    EmulatedPipeline pipeline(schedule.shape, {.copies = {.longest_delay = absl::Microseconds(200),
                                                          .seed = random.Next()},
                                               .seconds_per_unit = 20e-6,
                                               .message_bytes = kMessage});
    TransportPipeline transports(stages,
                                 Maker(GetParam(), {.seed = random.Next(),
                                                    .delay_probability = 0.3,
                                                    .max_delay = absl::Microseconds(500),
                                                    .reorder = true}),
                                 GetParam().on_devices);
    const absl::Status connected = transports.Connect(schedule, 3 * kMessage);
    ASSERT_TRUE(connected.ok()) << Describe(connected);
    for (int step = 0; step < 3; ++step) {
      const plan::ScheduleCosts costs =
          plan::RandomCosts(random, schedule.shape, 0.3, kBufferAlignment);
      const auto offloaded =
          plan::AddOffloads(schedule, costs, plan::RandomChoice(random, schedule.shape, costs));
      const auto times = plan::SimulateSchedule(offloaded->schedule, costs);
      const StageReports reports =
          pipeline.RunStep(offloaded->schedule, costs, AllLinks(transports, stages));
      for (int stage = 0; stage < stages; ++stage) {
        const auto& report = reports[static_cast<size_t>(stage)];
        ASSERT_TRUE(report.ok()) << schedule.name << ": " << Describe(report.status());
        EXPECT_EQ(report->peak_device_bytes,
                  times->stages[static_cast<size_t>(stage)].peak_device_bytes);
        EXPECT_EQ(report->peak_host_bytes,
                  times->stages[static_cast<size_t>(stage)].peak_host_bytes);
      }
      EXPECT_EQ(pipeline.GradientsOtherThanOne(), "") << schedule.name;
      pipeline.NextStep();
    }
  }
}

// The accepting side is in its step while the connecting one still completes the connection.
TEST_P(TransportLinksTest, NothingIsLostThatComesEarly) {
  const plan::Schedule schedule = plan::OneForwardOneBackward(2, 3);
  const plan::ScheduleCosts costs(schedule.shape, {});
  EmulatedPipeline pipeline(schedule.shape,
                            {.wait_timeout = absl::Seconds(10), .seconds_per_unit = 20e-6});
  std::vector<std::unique_ptr<transport::Transport>> transports;
  transports.push_back(std::make_unique<LateTransport>(Maker(GetParam())(0)));
  transports.push_back(Maker(GetParam())(1));
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<TransportLinks>> links;
    for (int stage = 0; stage < 2; ++stage) {
      links.push_back(TransportLinks::Create({.stage = stage,
                                              .transport = transports[stage].get(),
                                              .slots = {.bytes = 1 << 16},
                                              .buffers = {.bytes = 1 << 16}})
                          .value());
    }
    const std::string answer = links[1]->Accept(0, links[0]->Offer(1).value()).value();
    absl::StatusOr<StageReport> second = absl::UnknownError("not run");
    std::thread early([&] { second = pipeline.RunStage(1, schedule, costs, links[1].get()); });
    ASSERT_TRUE(links[0]->Complete(1, answer).ok());
    const absl::StatusOr<StageReport> first = pipeline.RunStage(0, schedule, costs, links[0].get());
    early.join();
    EXPECT_TRUE(first.ok() && second.ok())
        << Describe(first.status()) << ", " << Describe(second.status());
    pipeline.NextStep();
  }
}

TEST_P(TransportLinksTest, AConnectionThatBreaksFailsTheStepAndNewLinksRunIt) {
  const plan::Schedule schedule = plan::InterleavedOneForwardOneBackward(3, 2, 6);
  const plan::ScheduleCosts costs(schedule.shape, {});
  EmulatedPipeline pipeline(schedule.shape,
                            {.wait_timeout = absl::Seconds(10), .seconds_per_unit = 100e-6});
  for (const int64_t operations : {1, 5, 12, 20}) {
    // The first stage's connections break.
    TransportPipeline transports(3, [&](int stage) {
      return Maker({.transport = GetParam().transport, .faults = stage == 0},
                   {.break_after_operations = operations})(stage);
    });
    ASSERT_TRUE(transports.Connect(schedule, 3 * kMessage).ok());
    const StageReports reports = pipeline.RunStep(schedule, costs, AllLinks(transports, 3));
    EXPECT_THAT(std::string(reports[0].status().message()), HasSubstr("broken on purpose"));
    for (const absl::StatusOr<StageReport>& report : reports) {
      if (!report.ok()) {  // a stage may have got all that it needs
        EXPECT_TRUE(absl::IsUnavailable(report.status())) << Describe(report.status());
        EXPECT_THAT(std::string(report.status().message()), testing::ContainsRegex("stage [012]"));
      }
    }
    pipeline.GradientsOtherThanOne();
    pipeline.NextAttempt();
  }
  TransportPipeline transports(3, Maker(GetParam()), GetParam().on_devices);
  ASSERT_TRUE(transports.Connect(schedule, 3 * kMessage).ok());
  for (const auto& report : pipeline.RunStep(schedule, costs, AllLinks(transports, 3))) {
    EXPECT_TRUE(report.ok()) << Describe(report.status());
  }
  EXPECT_EQ(pipeline.GradientsOtherThanOne(), "");
}

TEST_P(TransportLinksTest, CancellingAStageEndsItsNeighboursWaits) {
  const plan::Schedule schedule = plan::OneForwardOneBackward(3, 4);
  const plan::ScheduleCosts costs(schedule.shape, {});
  EmulatedPipeline pipeline(schedule.shape, {.seconds_per_unit = 1e-3});
  TransportPipeline transports(3, Maker(GetParam()), GetParam().on_devices);
  ASSERT_TRUE(transports.Connect(schedule, 3 * kMessage).ok());
  // Stage 0 never comes.
  StageReports reports(3, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (const int stage : {1, 2}) {
    threads.emplace_back([&, stage] {
      reports[static_cast<size_t>(stage)] =
          pipeline.RunStage(stage, schedule, costs, &transports.links(stage));
    });
  }
  RealClock().SleepFor(absl::Milliseconds(20));
  pipeline.runner(1).Cancel(absl::CancelledError("the worker is leaving"));
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(Message(reports[1].status()),
            "stage 1 waits for the activation of chunk 0 microbatch 0 from stage 0: the worker is "
            "leaving");
  EXPECT_TRUE(absl::IsUnavailable(reports[2].status()));
  EXPECT_THAT(std::string(reports[2].status().message()),
              testing::MatchesRegex("stage 2 waits for the activation of chunk 0 microbatch 0 "
                                    "from stage 1: stage 1.*closed.*"));
}

TEST_P(TransportLinksTest, TooLittleMemoryIsToldBeforeTheStep) {
  const plan::Schedule schedule = plan::OneForwardOneBackward(2, 4);
  const plan::ScheduleCosts costs(schedule.shape, {});
  EmulatedPipeline pipeline(schedule.shape, {});
  TransportPipeline transports(2, Maker(GetParam()), GetParam().on_devices);
  ASSERT_TRUE(transports.Connect(schedule, kMessage).ok());
  const absl::Status status = pipeline.RunStage(0, schedule, costs, &transports.links(0)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the links to stage 1 have"));
}

// A peer that knows the protocol and breaks it. Messages lie on the host, or on a device, with
// headers in a region of their own.
class HostilePeerTest : public testing::TestWithParam<bool> {
 protected:
  static bool on_device() { return GetParam(); }
  void SetUp() override {
    const auto allocate = [&](transport::Access access) {
      return transport_->Allocate(4096, access).value();
    };
    Connect({allocate(transport::Access::kRemoteWrite), allocate(transport::Access::kRemoteWrite)});
  }
  // Connects a peer that exposes these, the second only if headers lie apart.
  void Connect(std::vector<std::shared_ptr<transport::Region>> exposed) {
    links_.reset();
    connection_.reset();
    queue_ = transport_->CreateQueue().value();
    local_ = transport_->Allocate(4096, transport::Access::kLocal).value();
    const LinkCapacity room = {.bytes = 4096, .pieces = 4};
    links_ = TransportLinks::Create({.stage = 1,
                                     .transport = other_transport_.get(),
                                     .slots = room,
                                     .buffers = room,
                                     .device = on_device() ? &device_ : nullptr,
                                     .lent = &lent_})
                 .value();
    exposed.resize(on_device() ? exposed.size() : 1);
    auto connector =
        transport_->Offer({.queue = queue_.get(), .exposed = std::move(exposed), .peer = "stage 1"})
            .value();
    connection_ = connector->Complete(links_->Accept(0, connector->offer()).value()).value();
    ASSERT_TRUE(
        links_->BeginStep({.step = 5, .attempt = 2, .queues = queues_, .bytes = bytes_}).ok());
  }
  void TearDown() override {
    links_.reset();
    connection_.reset();
  }

  StageMessageHeader Header() const {
    StageMessageHeader header = {
        .step = 5, .attempt = 2, .bytes = 100, .chunk = 0, .microbatch = 1};
    Seal(header);
    return header;
  }
  // Writes the header and the message that follows it in local_.
  void Write(const StageMessageHeader& header, uint32_t immediate) {
    std::memcpy(local_->bytes().data(), &header, sizeof(header));
    const std::span<const std::byte> all = local_->bytes().subspan(0, 164);
    std::vector<transport::WriteOperation> writes;
    if (on_device()) {
      writes.push_back({.id = 1, .region = kSlotsRegion, .offset = 64, .from = all.subspan(64)});
      writes.push_back({.id = 2, .region = kSlotHeadersRegion, .from = all.first(64)});
    } else {
      writes.push_back({.id = 1, .from = all});
    }
    writes.back().ring = true;
    writes.back().immediate = immediate;
    ASSERT_TRUE(connection_->PostWrites(writes).ok());
  }
  void SendGradient(int microbatch) {
    const StageMessage gradient = {.peer = 0, .gradient = true, .microbatch = microbatch};
    ASSERT_TRUE(links_->Reserve(gradient, absl::Seconds(1)).ok());
    ASSERT_TRUE(links_->Send(gradient).ok());
  }
  // Returns the status of the message that the links wait for.
  absl::Status Awaited() { return links_->Await(expected_, absl::Seconds(5)).status(); }

  SharingDevice device_;
  LentMemory lent_;
  const std::string kind_ = on_device() ? "tcp" : "shm";
  const std::unique_ptr<transport::Transport> transport_ =
      transport::CreateTransport(kind_).value();
  const std::unique_ptr<transport::Transport> other_transport_ =
      transport::CreateTransport(kind_).value();
  std::unique_ptr<transport::EventQueue> queue_;
  std::shared_ptr<transport::Region> local_;
  std::unique_ptr<TransportLinks> links_;
  std::unique_ptr<transport::Connection> connection_;
  const std::vector<plan::MessageQueue> queues_ = {
      {.from = 0, .to = 1, .messages = 2, .slots = 2, .send_buffers = 2},
      {.from = 1, .to = 0, .gradients = true, .messages = 2, .slots = 2, .send_buffers = 2}};
  const std::vector<int64_t> bytes_ = {50, 100};
  const StageMessage expected_ = {.peer = 0, .gradient = false, .chunk = 0, .microbatch = 1};
  const uint32_t message_ = Encode({LinkDoorbell::Kind::kMessage, false, 0, 0});
};

INSTANTIATE_TEST_SUITE_P(Messages, HostilePeerTest, testing::Bool(), [](const auto& info) {
  return info.param ? "on_a_device" : "on_the_host";
});

TEST_P(HostilePeerTest, TheRightMessageIsTaken) {
  ASSERT_TRUE(links_->Post(expected_).ok());
  std::memset(local_->bytes().data() + 64, 7, 100);
  Write(Header(), message_);
  const auto found = links_->Await(expected_, absl::Seconds(5));
  ASSERT_TRUE(found.ok()) << Describe(found.status());
  EXPECT_EQ(static_cast<int>((*found)[99]), 7);
  EXPECT_TRUE(links_->Consumed(expected_).ok());
  EXPECT_TRUE(absl::IsInternal(links_->Consumed(expected_)));
}

TEST_P(HostilePeerTest, EveryHeaderThatIsNotTheExpectedOneIsRefused) {
  const auto refused = [&](const std::function<void(StageMessageHeader&)>& change, bool seal) {
    SetUp();
    EXPECT_TRUE(links_->Post(expected_).ok());
    StageMessageHeader header = Header();
    change(header);
    if (seal) {
      Seal(header);
    }
    Write(header, message_);
    const absl::Status status = Awaited();
    EXPECT_TRUE(absl::IsDataLoss(status)) << Describe(status);
    EXPECT_THAT(std::string(status.message()), HasSubstr("stage 0: "));
  };
  refused([](auto& header) { header.step = 6; }, true);
  refused([](auto& header) { header.attempt = 1; }, true);
  refused([](auto& header) { header.bytes = 1 << 30; }, true);
  refused([](auto& header) { header.chunk = 1; }, true);
  refused([](auto& header) { header.microbatch = 0; }, true);
  refused([](auto& header) { header.gradient = 1; }, true);
  refused([](auto& header) { header.number = 1; }, true);
  refused([](auto& header) { header.chunk = 1; }, false);
  refused([](auto& header) { header.magic = 0; }, false);
}

TEST_P(HostilePeerTest, DoorbellsOutOfTurnAreRefused) {
  for (const LinkDoorbell& doorbell :
       std::vector<LinkDoorbell>{{LinkDoorbell::Kind::kMessage, false, 1, 0},  // another number
                                 {LinkDoorbell::Kind::kMessage, false, 0, 1},  // another slot
                                 {LinkDoorbell::Kind::kMessage, true, 0, 0},   // another queue
                                 {LinkDoorbell::Kind::kMessage, false, 0, 60000},
                                 {LinkDoorbell::Kind::kReceive, true, 3, 0}}) {
    SetUp();
    ASSERT_TRUE(links_->Post(expected_).ok());
    Write(Header(), Encode(doorbell));
    EXPECT_TRUE(absl::IsDataLoss(Awaited()));
  }
}

TEST_P(HostilePeerTest, AReceiveOutsideOfTheSlotsIsRefused) {
  SendGradient(0);
  ASSERT_TRUE(links_->Post(expected_).ok());
  Write(Header(), Encode({LinkDoorbell::Kind::kReceive, true, 0, 2}));
  EXPECT_TRUE(absl::IsDataLoss(Awaited()));
}

TEST_P(HostilePeerTest, WhoNeverReceivesIsNamed) {
  SendGradient(0);
  SendGradient(1);
  const absl::Status full =
      links_->Reserve({.peer = 0, .gradient = true}, absl::Milliseconds(10)).status();
  EXPECT_EQ(Message(full), "2 messages were not received within 10ms");
  EXPECT_EQ(Message(links_->EndStep(absl::Milliseconds(10))),
            "stage 0 did not receive 2 messages within 10ms");
}

// Nothing is written without room or a region for it.
TEST_P(HostilePeerTest, WhoExposesTooLittleIsNotWrittenTo) {
  const auto small = transport_->Allocate(64, transport::Access::kRemoteWrite).value();
  const auto large = transport_->Allocate(4096, transport::Access::kRemoteWrite).value();
  std::vector<std::vector<std::shared_ptr<transport::Region>>> cases = {{small, large}};
  if (on_device()) {
    cases.push_back({large});
  }
  for (const auto& exposed : cases) {
    Connect(exposed);
    SendGradient(1);
    ASSERT_TRUE(links_->Post(expected_).ok());
    const transport::WriteOperation ring = {
        .id = 1, .ring = true, .immediate = Encode({LinkDoorbell::Kind::kReceive, true, 0, 0})};
    ASSERT_TRUE(connection_->PostWrites({&ring, 1}).ok());
    const absl::Status status = Awaited();
    EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << Describe(status);
    EXPECT_THAT(std::string(status.message()), HasSubstr("stage 0"));
    EXPECT_EQ(links_->status(), status);
  }
}

TEST(LinkDoorbells, SayWhatTheyWereMadeOf) {
  Random random(43);
  for (int round = 0; round < 1000; ++round) {
    const LinkDoorbell doorbell = {.kind = static_cast<LinkDoorbell::Kind>(random.Below(3)),
                                   .gradients = random.Below(2) == 1,
                                   .number = static_cast<uint32_t>(random.Below(kLinkNumbers)),
                                   .slot = static_cast<uint32_t>(random.Below(kMaxLinkSlots))};
    EXPECT_EQ(DecodeDoorbell(Encode(doorbell)), doorbell);
  }
}

}  // namespace
}  // namespace shoal::worker
