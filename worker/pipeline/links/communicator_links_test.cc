// Links between stages on fake GPUs, by the fake NCCL, with late control messages within the
// process.
#include "worker/pipeline/links/communicator_links.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"
#include "worker/collectives/nccl/nccl_collectives.h"
#include "worker/pipeline/links/in_process_links.h"
#include "worker/pipeline/testing/one_call_at_a_time.h"

namespace shoal::worker {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kBytes = 640;
constexpr int kMessages = 6;  // of each queue
constexpr int kPlaces = 2;    // at both ends of it
// Long enough for any machine: no test waits this long.
constexpr absl::Duration kLong = absl::Seconds(60);

std::byte ByteOf(const StageMessage& message, int from) {
  return std::byte(1 + message.microbatch + 10 * (message.gradient ? 1 : 0) + 20 * from);
}

// Shuffles pairs of stages with a kind of message, each as often as its queue has messages.
std::vector<std::tuple<int, int, bool>> OrderOf(int stages, uint64_t seed) {
  std::vector<std::tuple<int, int, bool>> order;
  for (int low = 0; low < stages; ++low) {
    for (int high = low + 1; high < stages; ++high) {
      for (int i = 0; i < 2 * kMessages; ++i) {
        order.emplace_back(low, high, i % 2 == 1);
      }
    }
  }
  Random random(seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.Below(i)]);
  }
  return order;
}

// Returns queues of activations and gradients both ways between all stages.
std::vector<plan::MessageQueue> AllQueues(int stages, int messages) {
  std::vector<plan::MessageQueue> queues;
  for (int from = 0; from < stages; ++from) {
    for (int to = 0; to < stages; ++to) {
      for (const bool gradients : {false, true}) {
        if (from != to) {
          queues.push_back({.from = from,
                            .to = to,
                            .gradients = gradients,
                            .messages = messages,
                            .slots = kPlaces,
                            .send_buffers = kPlaces});
        }
      }
    }
  }
  return queues;
}

// A stage with its own GPU, as in its own process.
struct Stage {
  explicit Stage(int number)
      : number(number),
        device(*MakeCudaDevice({.gpu = number})),
        compute(device->NewStream()),
        collectives(*OpenNccl(*device), &driver),
        links({.stage = number,
               .device = device.get(),
               .compute = compute.get(),
               .collectives = &collectives,
               .timeout = kLong,
               .poison = true}) {}

  // Waits as the driver does when it loads code or frees memory.
  void AwaitWholeGpu() {
    absl::MutexLock lock(&driver);
    EXPECT_TRUE(MakeCurrent(*device).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  const int number;
  absl::Mutex driver;
  const std::unique_ptr<Device> device;
  const std::unique_ptr<Stream> compute;
  OneCallAtATimeCollectives collectives;
  CommunicatorLinks links;
};

class CommunicatorLinksTest : public ::testing::Test {
 protected:
  CommunicatorLinksTest() { MakeStages(/*seed=*/1, 3); }

  void MakeStages(uint64_t seed, int stages) {
    stages_.clear();
    gpu::SetFakeGpus({.count = stages, .seed = seed});
    SetFakeNccl({});
    for (int i = 0; i < stages; ++i) {
      stages_.push_back(std::make_unique<Stage>(i));
    }
    NewHost(seed);
  }
  // For the control messages of an attempt.
  void NewHost(uint64_t seed) {
    host_ = std::make_unique<InProcessPipeline>(
        static_cast<int>(stages_.size()),
        InProcessLinksOptions{.longest_delay = absl::Microseconds(300), .seed = seed});
  }

  // Runs a step on all stages concurrently; a stage that fails abandons it.
  std::vector<absl::Status> RunAll(int64_t step, int64_t attempt,
                                   const std::function<absl::Status(Stage&)>& run,
                                   int messages = kMessages) {
    const std::vector<plan::MessageQueue> queues =
        AllQueues(static_cast<int>(stages_.size()), messages);
    const std::vector<int64_t> bytes(kMessages, kBytes);
    std::vector<absl::Status> statuses(stages_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < stages_.size(); ++i) {
      threads.emplace_back([&, i] {
        Stage& stage = *stages_[i];
        const auto all = [&]() -> absl::Status {
          stage.links.Attach(host_->links(stage.number));
          SHOAL_RETURN_IF_ERROR(stage.links.BeginStep(
              {.step = step, .attempt = attempt, .queues = queues, .bytes = bytes}));
          SHOAL_RETURN_IF_ERROR(run(stage));
          return stage.links.EndStep(kLong);
        };
        statuses[i] = all();
        if (!statuses[i].ok()) {
          stage.links.Abandon(statuses[i]);
        }
        EXPECT_TRUE(stage.compute->Synchronize().ok());  // waits for nobody
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return statuses;
  }

  // Exchanges all messages of all queues and checks them. The seed gives any two stages the same
  // order; both send before they wait. Calls `before` each message, with the number before it.
  absl::Status ExchangeAll(Stage& stage, uint64_t seed,
                           const std::function<absl::Status(int)>& before) {
    std::vector<StageMessage> order;
    for (const auto& [low, high, gradient] : OrderOf(static_cast<int>(stages_.size()), seed)) {
      if (stage.number == low || stage.number == high) {
        order.push_back({.peer = stage.number == low ? high : low, .gradient = gradient});
      }
    }
    std::map<std::pair<int, bool>, int> counts;
    for (StageMessage& message : order) {
      message.microbatch = counts[{message.peer, message.gradient}]++;
      if (message.microbatch == 0) {
        SHOAL_RETURN_IF_ERROR(stage.links.Post(message));
      }
    }
    const std::unique_ptr<Memory> memory = stage.device->NewHostMemory(0);
    std::vector<Buffer> copies;
    for (size_t i = 0; i < order.size(); ++i) {
      SHOAL_RETURN_IF_ERROR(before(static_cast<int>(i)));
      SHOAL_RETURN_IF_ERROR(Make(stage, order[i]));
      StageMessage next = order[i];
      if (++next.microbatch < kMessages) {
        SHOAL_RETURN_IF_ERROR(stage.links.Post(next));
      }
      SHOAL_ASSIGN_OR_RETURN(copies.emplace_back(), Use(stage, order[i], *memory));
    }
    SHOAL_RETURN_IF_ERROR(stage.compute->Synchronize());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_THAT(std::vector<std::byte>(copies[i].data(), copies[i].data() + kBytes),
                  Each(ByteOf(order[i], order[i].peer)))
          << NameOf(order[i]) << " from stage " << order[i].peer;
    }
    return absl::OkStatus();
  }
  static absl::Status Make(Stage& stage, const StageMessage& message) {
    SHOAL_ASSIGN_OR_RETURN(std::byte* const room, stage.links.Reserve(message, kLong));
    stage.compute->Fill(room, ByteOf(message, stage.number), kBytes);
    return stage.links.Send(message);
  }
  static absl::StatusOr<Buffer> Use(Stage& stage, const StageMessage& message, Memory& memory) {
    SHOAL_ASSIGN_OR_RETURN(const std::byte* const data, stage.links.Await(message, kLong));
    SHOAL_ASSIGN_OR_RETURN(Buffer copy, memory.Allocate(kBytes));
    stage.compute->Copy(copy.data(), data, kBytes);
    SHOAL_RETURN_IF_ERROR(stage.links.Consumed(message));
    return copy;
  }
  static void ExpectAllOk(const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  std::unique_ptr<InProcessPipeline> host_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

constexpr auto kNothing = [](int) { return absl::OkStatus(); };

// Both stages of a pair send before they receive: on one stream they would deadlock.
TEST_F(CommunicatorLinksTest, MessagesOfAllQueuesArriveWholeInEveryOrder) {
  for (const int stages : {2, 3}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(seed);
      MakeStages(seed, stages);
      ExpectAllOk(RunAll(1, 1, [&](Stage& stage) { return ExchangeAll(stage, seed, kNothing); }));
    }
  }
}

// Loading code and freeing memory may wait for everything on a GPU, and block all other calls of
// the process: at any time, on all stages.
TEST_F(CommunicatorLinksTest, NobodyStandsStillWhereWholeGpusAreWaitedFor) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    MakeStages(seed, 3);
    ExpectAllOk(RunAll(1, 1, [&](Stage& stage) {
      Random random(seed, 100 + static_cast<uint64_t>(stage.number));
      return ExchangeAll(stage, seed, [&](int) {
        if (random.Below(2) == 0) {
          stage.AwaitWholeGpu();
        }
        return absl::OkStatus();
      });
    }));
  }
}

TEST_F(CommunicatorLinksTest, NothingIsOnAGpuBeforeBothStagesAreReady) {
  MakeStages(1, 2);
  absl::Barrier* const made = new absl::Barrier(2);
  absl::Barrier* const posted = new absl::Barrier(2);
  const auto wait = [](absl::Barrier* barrier) {
    if (barrier->Block()) {
      delete barrier;
    }
  };
  ExpectAllOk(RunAll(
      1, 1,
      [&](Stage& stage) -> absl::Status {
        const StageMessage activation{.peer = 1 - stage.number};
        const StageMessage gradient{.peer = 1 - stage.number, .gradient = true};
        const std::unique_ptr<Memory> memory = stage.device->NewHostMemory(0);
        SHOAL_RETURN_IF_ERROR(Make(stage, activation));
        absl::SleepFor(absl::Milliseconds(20));
        stage.AwaitWholeGpu();  // the other has posted no receive
        wait(made);
        SHOAL_RETURN_IF_ERROR(stage.links.Post(activation));
        SHOAL_RETURN_IF_ERROR(Use(stage, activation, *memory).status());
        SHOAL_RETURN_IF_ERROR(stage.links.Post(gradient));
        absl::SleepFor(absl::Milliseconds(20));
        stage.AwaitWholeGpu();  // the other has made no message
        wait(posted);
        SHOAL_RETURN_IF_ERROR(Make(stage, gradient));
        return Use(stage, gradient, *memory).status();
      },
      /*messages=*/1));
}

TEST_F(CommunicatorLinksTest, CommunicatorsAreKeptUntilAnAttemptFails) {
  const auto run = [&](Stage& stage) { return ExchangeAll(stage, 1, kNothing); };
  const int64_t of_step = 3 * 4 * kMessages;
  const int64_t to_connect = 3 * 2;
  ExpectAllOk(RunAll(1, 1, run));
  EXPECT_EQ(CountNccl().messages, to_connect + of_step);
  ExpectAllOk(RunAll(2, 1, run));
  EXPECT_EQ(CountNccl().messages, to_connect + 2 * of_step);
  EXPECT_EQ(CountNccl().communicators, 3 * 2 * 2);
  NewHost(2);
  ExpectAllOk(RunAll(2, 2, run));
  EXPECT_EQ(CountNccl().messages, 2 * to_connect + 3 * of_step);
  EXPECT_EQ(CountNccl().communicators, 3 * 2 * 2);
  for (const auto& stage : stages_) {
    stage->links.Disconnect();
  }
  EXPECT_EQ(CountNccl().communicators, 0);
}

TEST_F(CommunicatorLinksTest, AStageThatIsLostFailsTheOthersAndNotTheNextAttempt) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    MakeStages(seed, 3);
    const absl::Time begun = absl::Now();
    const auto statuses = RunAll(1, 1, [&](Stage& stage) {
      return ExchangeAll(stage, seed, [&](int count) {
        return stage.number == 1 && count == 7 ? Unavailable("it is lost") : absl::OkStatus();
      });
    });
    EXPECT_LT(absl::Now() - begun, kLong / 2);
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(Message(status)), HasSubstr("it is lost"));
    }
    EXPECT_EQ(CountNccl().communicators, 0) << "left behind";
    NewHost(seed);
    ExpectAllOk(RunAll(1, 2, [&](Stage& stage) { return ExchangeAll(stage, seed, kNothing); }));
  }
}

TEST_F(CommunicatorLinksTest, WhoConnectsHearsThatANeighbourIsLost) {
  MakeStages(1, 2);
  Stage& stage = *stages_[0];
  stage.links.Attach(host_->links(0));
  std::thread neighbour([&] {
    absl::SleepFor(absl::Milliseconds(50));
    host_->links(1).Close(Unavailable("it is lost"));
  });
  const std::vector<plan::MessageQueue> queues = AllQueues(2, kMessages);
  const std::vector<int64_t> bytes(kMessages, kBytes);
  const absl::Time begun = absl::Now();
  const absl::Status status =
      stage.links.BeginStep({.step = 1, .attempt = 1, .queues = queues, .bytes = bytes});
  EXPECT_LT(absl::Now() - begun, kLong / 2);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr("it is lost"));
  EXPECT_EQ(CountNccl().communicators, 0) << "left behind";
  neighbour.join();
}

TEST_F(CommunicatorLinksTest, AnErrorOfNcclFailsAllAndNotTheNextAttempt) {
  const auto run = [&](Stage& stage) { return ExchangeAll(stage, 3, kNothing); };
  FailCollective(40, ncclRemoteError);
  for (const absl::Status& status : RunAll(1, 1, run)) {
    EXPECT_FALSE(status.ok());
  }
  EXPECT_EQ(CountNccl().communicators, 0) << "left behind";
  NewHost(2);
  ExpectAllOk(RunAll(1, 2, run));
}

TEST_F(CommunicatorLinksTest, WhoIsNotReadyInTimeIsToldOf) {
  MakeStages(1, 2);
  absl::Notification waited;
  const auto statuses = RunAll(1, 1, [&](Stage& stage) -> absl::Status {
    if (stage.number == 1) {
      waited.WaitForNotification();
      return absl::OkStatus();
    }
    SHOAL_RETURN_IF_ERROR(stage.links.Post({.peer = 1}));
    const absl::Status late = stage.links.Await({.peer = 1}, absl::Milliseconds(50)).status();
    for (int i = 0; i < kPlaces; ++i) {
      SHOAL_RETURN_IF_ERROR(Make(stage, {.peer = 1, .microbatch = i}));
    }
    const absl::Status full =
        stage.links.Reserve({.peer = 1, .microbatch = kPlaces}, absl::Milliseconds(50)).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(full)) << full;
    waited.Notify();
    return late;
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[0])) << statuses[0];
  EXPECT_FALSE(statuses[1].ok());
}

TEST_F(CommunicatorLinksTest, MessagesOfAnotherNameAreRefused) {
  MakeStages(1, 2);
  bool named = false;
  for (const absl::Status& status : RunAll(1, 1, [&](Stage& stage) -> absl::Status {
         if (stage.number == 0) {
           SHOAL_RETURN_IF_ERROR(Make(stage, {.peer = 1, .microbatch = 1}));
           return stage.links.Await({.peer = 1}, kLong).status();
         }
         SHOAL_RETURN_IF_ERROR(stage.links.Post({.peer = 0}));
         return stage.links.Await({.peer = 0}, kLong).status();
       })) {
    EXPECT_FALSE(status.ok());
    named = named || absl::IsDataLoss(status);
  }
  EXPECT_TRUE(named);
}

TEST_F(CommunicatorLinksTest, MoreReceivesThanSlotsAreRefused) {
  MakeStages(1, 2);
  const auto statuses = RunAll(1, 1, [&](Stage& stage) -> absl::Status {
    for (int i = 0; i <= kPlaces; ++i) {
      SHOAL_RETURN_IF_ERROR(stage.links.Post({.peer = 1 - stage.number, .microbatch = i}));
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(std::ranges::any_of(statuses, absl::IsInternal));
}

}  // namespace
}  // namespace shoal::worker
