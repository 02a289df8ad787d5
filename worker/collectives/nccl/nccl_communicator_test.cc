// Ranks on fake GPUs, over the fake NCCL.
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/bf16.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"
#include "worker/collectives/nccl/nccl_collectives.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

// Long enough for any machine, in tests that must not reach it.
constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(300);

struct Rank {
  int number = 0;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<Communicator> communicator;

  // Returns device memory with these elements.
  Buffer Upload(const std::vector<float>& values) const {
    Buffer buffer = *device->Allocate(static_cast<int64_t>(values.size()) * 4);
    stream->Copy(buffer.data(), values.data(), buffer.bytes());
    return buffer;
  }
  std::vector<float> Download(const Buffer& buffer) const {
    std::vector<float> values(static_cast<size_t>(buffer.bytes()) / 4);
    stream->Copy(values.data(), buffer.data(), buffer.bytes());
    EXPECT_TRUE(stream->Synchronize().ok());
    return values;
  }
};

class NcclTest : public ::testing::Test {
 protected:
  NcclTest() { SetUpGpus(/*seed=*/1, /*gpus=*/3); }
  static void SetUpGpus(uint64_t seed, int gpus) {
    gpu::SetFakeGpus({.count = gpus, .seed = seed});
    SetFakeNccl({});
  }

  // A thread for each rank, on its GPU (by default that of its number); `run` is called once it is
  // connected.
  struct Options {
    int ranks = 3;
    std::vector<int> gpus = {0, 1, 2};
    absl::Duration connect_timeout = kLong;
    absl::Duration timeout = kLong;
    std::function<absl::Status()> check;
  };
  static std::vector<absl::Status> RunRanks(const Options& options,
                                            const std::function<absl::Status(Rank&)>& run) {
    const std::string id = NewId();
    std::vector<absl::Status> statuses(options.gpus.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < options.gpus.size(); ++i) {
      threads.emplace_back([&, i] {
        Rank rank{.number = static_cast<int>(i)};
        rank.device = *MakeCudaDevice({.gpu = options.gpus[i]});
        rank.stream = rank.device->NewStream();
        rank.collectives = *OpenNccl(*rank.device);
        auto communicator = rank.collectives->Join({.name = "test",
                                                    .id = id,
                                                    .rank = rank.number,
                                                    .ranks = options.ranks,
                                                    .connect_timeout = options.connect_timeout,
                                                    .timeout = options.timeout,
                                                    .check = options.check});
        if (!communicator.ok()) {
          statuses[i] = communicator.status();
          return;
        }
        rank.communicator = *std::move(communicator);
        statuses[i] = run(rank);
        // What a test leaves unfinished must not hold the GPU: destroy the communicator first.
        rank.communicator.reset();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return statuses;
  }
  static std::string NewId() {
    const std::unique_ptr<Device> device = *MakeCudaDevice({});
    return *(*OpenNccl(*device))->NewId();
  }
  static void ExpectAllOk(const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

std::vector<float> ValuesOf(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(rank * 1000 + static_cast<int>(i));
  }
  return values;
}

TEST_F(NcclTest, AllGathersWhatStreamsMakeInAnyOrder) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SetUpGpus(seed, 3);
    ExpectAllOk(RunRanks({}, [](Rank& rank) -> absl::Status {
      const auto other = rank.device->NewStream();
      for (const size_t count : {size_t{1}, size_t{7}, size_t{64}}) {
        const Buffer from = rank.Upload(ValuesOf(rank.number, count));
        const Buffer to = *rank.device->Allocate(static_cast<int64_t>(count) * 12);
        const auto uploaded = rank.stream->Record();
        other->WaitFor(*uploaded);
        SHOAL_RETURN_IF_ERROR(rank.communicator->AllGather(
            from.data(), to.data(), static_cast<int64_t>(count), DType::kF32, *other, "gather"));
        const auto gathered = other->Record();
        rank.stream->WaitFor(*gathered);
        std::vector<float> all;
        for (int each = 0; each < 3; ++each) {
          const std::vector<float> values = ValuesOf(each, count);
          all.insert(all.end(), values.begin(), values.end());
        }
        EXPECT_EQ(rank.Download(to), all);
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(CountNccl().all_gathers, 3);
    EXPECT_EQ(CountNccl().aborted, 0);
    EXPECT_EQ(CountNccl().communicators, 0);
  }
}

TEST_F(NcclTest, ReduceScattersInBothTypes) {
  ExpectAllOk(RunRanks({}, [](Rank& rank) -> absl::Status {
    const Buffer from = rank.Upload(ValuesOf(rank.number, 15));
    const Buffer to = *rank.device->Allocate(20);
    SHOAL_RETURN_IF_ERROR(rank.communicator->ReduceScatter(from.data(), to.data(), 5, DType::kF32,
                                                           *rank.stream, "reduce"));
    std::vector<float> sum(5);
    for (int i = 0; i < 5; ++i) {
      sum[static_cast<size_t>(i)] = static_cast<float>(3000 + 3 * (rank.number * 5 + i));
    }
    EXPECT_EQ(rank.Download(to), sum);

    std::vector<BFloat16> halves(6);
    for (int i = 0; i < 6; ++i) {
      halves[static_cast<size_t>(i)] = BFloat16(static_cast<float>(rank.number + i));
    }
    const Buffer wide = *rank.device->Allocate(12);
    rank.stream->Copy(wide.data(), halves.data(), 12);
    // In the rank's own part of its input.
    std::byte* const in_place = wide.data() + rank.number * 4;
    SHOAL_RETURN_IF_ERROR(rank.communicator->ReduceScatter(wide.data(), in_place, 2, DType::kBF16,
                                                           *rank.stream, "reduce"));
    std::vector<BFloat16> got(2);
    rank.stream->Copy(got.data(), in_place, 4);
    SHOAL_RETURN_IF_ERROR(rank.stream->Synchronize());
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(static_cast<float>(got[static_cast<size_t>(i)]),
                static_cast<float>(3 + 3 * (rank.number * 2 + i)));
    }
    return absl::OkStatus();
  }));
}

TEST_F(NcclTest, MessagesPairUpInOrder) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SetUpGpus(seed, 2);
    ExpectAllOk(RunRanks({.ranks = 2, .gpus = {1, 0}}, [](Rank& rank) -> absl::Status {
      for (int i = 1; i <= 3; ++i) {
        const auto count = static_cast<size_t>(i * 10);
        if (rank.number == 0) {
          const Buffer from = rank.Upload(ValuesOf(i, count));
          SHOAL_RETURN_IF_ERROR(rank.communicator->Send(
              from.data(), static_cast<int64_t>(count) * 4, 1, *rank.stream, "send"));
          SHOAL_RETURN_IF_ERROR(rank.stream->Synchronize());
        } else {
          const Buffer to = *rank.device->Allocate(static_cast<int64_t>(count) * 4);
          SHOAL_RETURN_IF_ERROR(rank.communicator->Receive(
              to.data(), static_cast<int64_t>(count) * 4, 0, *rank.stream, "receive"));
          EXPECT_EQ(rank.Download(to), ValuesOf(i, count));
        }
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(CountNccl().messages, 3);
  }
}

TEST_F(NcclTest, ARankThatDoesNotComeIsWaitedForWithADeadline) {
  const auto statuses =
      RunRanks({.ranks = 3, .gpus = {0, 1}, .connect_timeout = kShort}, [](Rank&) -> absl::Status {
        ADD_FAILURE() << "connected";
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(Message(status)), HasSubstr("test: connecting rank"));
  }
  EXPECT_EQ(CountNccl().communicators, 0);
}

TEST_F(NcclTest, TwoRanksOnOneGpuAreRefused) {
  const auto statuses =
      RunRanks({.ranks = 2, .gpus = {1, 1}}, [](Rank&) { return absl::OkStatus(); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(Message(status)), HasSubstr("fake error: told by the fake"));
  }
}

// What is on the device ends with the communicator; memory and streams stay usable.
absl::Status GatherAndSee(Rank& rank, std::string_view what, int64_t count = 4) {
  const Buffer from = rank.Upload(ValuesOf(rank.number, 8));
  const Buffer to = *rank.device->Allocate(3 * 8 * 4);
  SHOAL_RETURN_IF_ERROR(
      rank.communicator->AllGather(from.data(), to.data(), count, DType::kF32, *rank.stream, what));
  EXPECT_TRUE(rank.stream->Synchronize().ok());
  return rank.communicator->status();
}

TEST_F(NcclTest, ARankThatMakesNoCallCostsTheOthersTheirTimeout) {
  absl::Notification others_gave_up;
  std::atomic<int> gave_up = 0;
  const auto statuses = RunRanks({.timeout = kShort}, [&](Rank& rank) {
    if (rank.number == 1) {
      others_gave_up.WaitForNotification();
      return absl::OkStatus();
    }
    const absl::Status status = GatherAndSee(rank, "weights of block.3");
    if (++gave_up == 2) {
      others_gave_up.Notify();
    }
    EXPECT_EQ(GatherAndSee(rank, "later").message(), status.message());
    return status;
  });
  for (const int rank : {0, 2}) {
    const absl::Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(Message(status)), HasSubstr("test: weights of block.3: not done"));
  }
  EXPECT_TRUE(statuses[1].ok());
}

TEST_F(NcclTest, CallsThatDoNotMatchNeverHappen) {
  for (const absl::Status& status : RunRanks({.timeout = kShort}, [](Rank& rank) {
         return GatherAndSee(rank, "gather", rank.number == 2 ? 5 : 4);
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_F(NcclTest, EndsWhenTheOthersAreSaidToHaveGivenUp) {
  std::atomic<bool> over = false;
  const auto check = [&] { return over ? Aborted("the attempt ended") : absl::OkStatus(); };
  const auto statuses = RunRanks({.check = check}, [&](Rank& rank) {
    if (rank.number == 1) {
      over = true;
      return absl::OkStatus();
    }
    return GatherAndSee(rank, "gather");
  });
  for (const int rank : {0, 2}) {
    const absl::Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(Message(status)), HasSubstr("the attempt ended"));
  }
  EXPECT_EQ(CountNccl().aborted, 2);
}

TEST_F(NcclTest, IsAbortedFromAnotherThread) {
  const auto statuses = RunRanks({}, [](Rank& rank) -> absl::Status {
    if (rank.number == 1) {
      return absl::OkStatus();
    }
    std::thread other([&rank] { rank.communicator->Abort(absl::CancelledError("leaving")); });
    const absl::Status status = GatherAndSee(rank, "gather");
    other.join();
    return status;
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(statuses[2].code(), absl::StatusCode::kCancelled);
}

TEST_F(NcclTest, ErrorsThatNcclTellsLaterEndIt) {
  std::atomic<bool> over = false;
  const auto check = [&] { return over ? Aborted("given up") : absl::OkStatus(); };
  FailCollective(2, ncclRemoteError);
  int unavailable = 0;
  for (const absl::Status& status : RunRanks({.check = check}, [&](Rank& rank) {
         const absl::Status failed = GatherAndSee(rank, "gather");
         over = true;
         return failed;
       })) {
    EXPECT_FALSE(status.ok());
    unavailable += absl::IsUnavailable(status) ? 1 : 0;
  }
  EXPECT_EQ(unavailable, 1);
}

TEST_F(NcclTest, AFailedGpuHoldsNobodyUp) {
  std::atomic<bool> over = false;
  const auto check = [&] { return over ? Aborted("given up") : absl::OkStatus(); };
  absl::BlockingCounter idle(3);
  absl::Notification broken;
  const auto statuses = RunRanks({.check = check}, [&](Rank& rank) -> absl::Status {
    const Buffer from = rank.Upload(ValuesOf(rank.number, 8));
    const Buffer to = *rank.device->Allocate(3 * 8 * 4);
    EXPECT_TRUE(rank.stream->Synchronize().ok());
    idle.DecrementCount();
    if (rank.number == 2) {  // not the first: a new thread has that one
      idle.Wait();
      gpu::FailWork(1, cudaErrorIllegalAddress);
      rank.stream->Zero(to.data(), 4);
      const absl::Status failed = rank.stream->Synchronize();
      broken.Notify();
      over = true;
      return failed;
    }
    broken.WaitForNotification();
    SHOAL_RETURN_IF_ERROR(rank.communicator->AllGather(from.data(), to.data(), 4, DType::kF32,
                                                       *rank.stream, "gather"));
    rank.stream->Synchronize().IgnoreError();
    return rank.communicator->status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
  }
}

TEST_F(NcclTest, RefusesWhatMakesNoSense) {
  SetFakeNccl({.version = NCCL_VERSION(2, 28, 9)});
  const std::unique_ptr<Device> device = *MakeCudaDevice({});
  const std::unique_ptr<Collectives> collectives = *OpenNccl(*device);
  EXPECT_EQ(collectives->name(), "NCCL 2.28.9");
  EXPECT_THAT(collectives->gpu(), HasSubstr("of machine"));
  EXPECT_EQ(collectives->Join({.name = "short", .id = "x"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(collectives->Join({.name = "rank", .id = *collectives->NewId(), .rank = 2, .ranks = 2})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  const auto alone = *collectives->Join({.name = "alone", .id = *collectives->NewId()});
  const auto stream = device->NewStream();
  EXPECT_EQ(alone->Send(nullptr, 4, 0, *stream, "to itself").code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NcclTest, TellsWhatIsMissing) {
  const std::unique_ptr<Device> device = *MakeCudaDevice({});
  SetFakeNccl({.there = false});
  EXPECT_EQ(OpenNccl(*device).status().code(), absl::StatusCode::kNotFound);
  SetFakeNccl({.version = NCCL_VERSION(2, 12, 10)});
  EXPECT_THAT(std::string(Message(OpenNccl(*device).status())), HasSubstr("2.12.10 is too old"));
}

}  // namespace
}  // namespace shoal::worker
