// The sink that sums gradients over all workers: servers receive the sum of all contributions, each
// counted once, whatever the push rule; errors when a worker or the library fails, and steps after
// that.
#include "worker/exchange/collective_sink.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"
#include "worker/exchange/testing/contributions.h"
#include "worker/exchange/testing/exchange.h"

namespace shoal::worker {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kWorkers = 3;
constexpr int kUnits = 4;
constexpr int kMicrobatches = 3;
const std::vector<int> kContributions = {2, 1, 1, 1};

CollectiveSink::Options SinkBy(PushRule::Options rule) {
  rule.contributions = kContributions;
  rule.keys_per_pack = kContributions;
  return {.rule = std::move(rule)};
}

class CollectiveSinkTest : public ::testing::Test {
 protected:
  void Make(const CollectiveSink::Options& options, uint64_t seed = 1) {
    exchange_ = nullptr;  // frees its GPUs before the next takes them
    exchange_ = std::make_unique<TestingExchange>(
        TestingExchange::Options{.workers = kWorkers, .seed = seed});
    ASSERT_THAT(exchange_->Run(
                    [&](ExchangingWorker& worker) { return exchange_->MakeSink(worker, options); }),
                Each(IsOk()));
  }
  static std::vector<Contribution> ContributionsOf(const TestingExchange& exchange, int worker,
                                                   uint64_t seed) {
    return RandomContributions(exchange.units(), kContributions, kMicrobatches, seed, worker);
  }
  // Adds to zeros, or writes what is empty.
  absl::Status ContributeOne(ExchangingWorker& worker, const Contribution& contribution,
                             std::deque<std::vector<float>>& kept) {
    UnitGradient to;
    if (writes_) {
      SHOAL_ASSIGN_OR_RETURN(to, worker.sink->Gradient(contribution.unit));
    } else {
      SHOAL_ASSIGN_OR_RETURN(to.sums, worker.sink->Accumulator(contribution.unit));
    }
    if (!to.empty) {
      return AddOnDevice(to.sums, contribution.gradient, *worker.compute, kept);
    }
    ++written_;
    kept.push_back(contribution.gradient);
    worker.compute->Copy(to.sums.data(), kept.back().data(),
                         static_cast<int64_t>(to.sums.size_bytes()));
    return absl::OkStatus();
  }
  // Makes all contributions of one worker's step, until their sums are on their way to the servers.
  absl::Status Contribute(ExchangingWorker& worker, const std::vector<Contribution>& contributions,
                          bool microbatches_known = true) {
    std::deque<std::vector<float>> kept;
    const absl::Status status = [&]() -> absl::Status {
      worker.sink->BeginStep({.microbatches = microbatches_known
                                                  ? std::optional<int64_t>(kMicrobatches)
                                                  : std::nullopt,
                              .packs = kMicrobatches,
                              .slot = worker.rank});
      for (const Contribution& contribution : contributions) {
        SHOAL_RETURN_IF_ERROR(ContributeOne(worker, contribution, kept));
        SHOAL_RETURN_IF_ERROR(Done(*worker.sink, contribution));
      }
      return absl::OkStatus();
    }();
    worker.compute->Synchronize().IgnoreError();  // `kept` is read until then
    return status;
  }
  absl::Status RunStep(ExchangingWorker& worker, uint64_t seed) {
    SHOAL_RETURN_IF_ERROR(Contribute(worker, ContributionsOf(*exchange_, worker.rank, seed)));
    SHOAL_RETURN_IF_ERROR(worker.sink->Flush());
    return worker.client->Finish(absl::Seconds(30)).status();
  }
  void ExpectSumsOf(uint64_t seed) {
    GradientSums expected(kUnits);
    for (int worker = 0; worker < kWorkers; ++worker) {
      for (const Contribution& contribution : ContributionsOf(*exchange_, worker, seed)) {
        AddUp(contribution, expected);
      }
    }
    for (int unit = 0; unit < kUnits; ++unit) {
      EXPECT_EQ(exchange_->rig().Sum(unit), expected[static_cast<size_t>(unit)])
          << "unit " << unit << ", seed " << seed;
    }
  }
  // Partitions with a part of this worker's shards: it pushes each once per step.
  int64_t PartitionsOf(const ExchangingWorker& worker) const {
    int64_t partitions = 0;
    for (const plan::PartitionSpec& partition : exchange_->rig().partitions) {
      const plan::ElementRange& whole = worker.shards.of(partition.unit).whole;
      partitions += partition.offset >= whole.first && partition.offset < whole.end() ? 1 : 0;
    }
    return partitions;
  }

  bool writes_ = true;
  std::atomic<int64_t> written_ = 0;  // contributions that wrote instead of adding
  std::unique_ptr<TestingExchange> exchange_;
};

TEST_F(CollectiveSinkTest, ServersHaveTheSumOfWhatAllContributed) {
  const std::vector<std::pair<PushRule::Options, int64_t>> rules = {
      {{.push_per_step = true}, 4},
      {{}, 4 * kMicrobatches},
      {{.push_each_contribution = true}, 5 * kMicrobatches}};  // with one reduction each
  for (const auto& [rule, reductions] : rules) {
    Make(SinkBy(rule), /*seed=*/static_cast<uint64_t>(reductions));
    for (int64_t step = 1; step <= 3; ++step) {
      const auto seed = static_cast<uint64_t>(step);
      const ExchangingWorker& one = exchange_->worker(1);
      const int64_t pushed = one.client->statistics().pushes;
      writes_ = step != 2;
      written_ = 0;
      ASSERT_THAT(exchange_->RunAttempt(
                      {step, 1}, [&](ExchangingWorker& worker) { return RunStep(worker, seed); }),
                  Each(IsOk()));
      ExpectSumsOf(seed);
      // Later sums of the step start from the earlier ones.
      EXPECT_EQ(written_, writes_ ? kWorkers * kUnits : 0);
      EXPECT_EQ(one.exchange->statistics().reduce_scatters, step * reductions);
      EXPECT_EQ(one.client->statistics().pushes - pushed, PartitionsOf(one));
    }
  }
}

TEST_F(CollectiveSinkTest, PushesTheRestWhenMicrobatchesAreNotKnown) {
  Make(SinkBy({.push_per_step = true}), 21);
  ASSERT_THAT(exchange_->RunAttempt({1, 1},
                                    [&](ExchangingWorker& worker) -> absl::Status {
                                      SHOAL_RETURN_IF_ERROR(Contribute(
                                          worker, ContributionsOf(*exchange_, worker.rank, 5),
                                          /*microbatches_known=*/false));
                                      SHOAL_RETURN_IF_ERROR(worker.sink->PushRest());
                                      SHOAL_RETURN_IF_ERROR(worker.sink->Flush());
                                      return worker.client->Finish(absl::Seconds(30)).status();
                                    }),
              Each(IsOk()));
  ExpectSumsOf(5);
}

// Drops an attempt with some sums pushed and others not.
TEST_F(CollectiveSinkTest, ADroppedAttemptLeavesNothingInTheNext) {
  for (const bool per_step : {true, false}) {
    Make(SinkBy({.push_per_step = per_step}), 22);
    const auto statuses = exchange_->RunAttempt({1, 1}, [&](ExchangingWorker& worker) {
      std::vector<Contribution> some = ContributionsOf(*exchange_, worker.rank, 6);
      some.resize(some.size() / 2);
      const absl::Status status = Contribute(worker, some);
      return status.ok() ? Aborted("the attempt was dropped") : status;
    });
    EXPECT_THAT(statuses, Each(HasCode(absl::StatusCode::kAborted)));
    ASSERT_THAT(
        exchange_->RunAttempt({1, 2}, [&](ExchangingWorker& worker) { return RunStep(worker, 7); }),
        Each(IsOk()));
    ExpectSumsOf(7);
  }
}

// One worker's reduction fails, before others in which all have shards: the attempt ends for all,
// and the next one, over a new communicator, is right.
TEST_F(CollectiveSinkTest, ACommunicatorThatFailsEndsTheAttemptOfAll) {
  Make(SinkBy({}), 23);
  int64_t step = 0;
  for (const int64_t collective : {1, 6, 20}) {
    SCOPED_TRACE(testing::Message() << "collective " << collective);
    ++step;
    FailCollective(collective, ncclRemoteError);
    const auto run = [&](ExchangingWorker& worker) {
      return RunStep(worker, static_cast<uint64_t>(step));
    };
    EXPECT_THAT(
        exchange_->RunAttempt({step, 1}, run),
        Each(AnyOf(HasCode(absl::StatusCode::kUnavailable), HasCode(absl::StatusCode::kAborted))));
    ASSERT_THAT(exchange_->RunAttempt({step, 2}, run), Each(IsOk()));
    ExpectSumsOf(static_cast<uint64_t>(step));
  }
}

// A refusal may be temporary: the attempt after a failed one is complete, and an attempt that
// reports success has every bit.
TEST_F(CollectiveSinkTest, StartsAnewAfterAnEventThatWasRefused) {
  int64_t failed = 0;
  for (int64_t number = 1; number <= 60; number += 3) {
    SCOPED_TRACE(testing::Message() << "event " << number);
    Make(SinkBy({}), static_cast<uint64_t>(100 + number));
    gpu::FailCall("cudaEventRecord", number, cudaErrorMemoryAllocation);
    int64_t failures = 0;
    for (int64_t attempt = 1; attempt <= 4; ++attempt) {
      const auto seed = static_cast<uint64_t>(attempt);
      const std::vector<absl::Status> statuses = exchange_->RunAttempt(
          {1, attempt}, [&](ExchangingWorker& worker) { return RunStep(worker, seed); });
      if (!std::ranges::all_of(statuses, &absl::Status::ok)) {
        ++failures;
        continue;
      }
      ExpectSumsOf(seed);
    }
    EXPECT_LE(failures, 1);
    failed += failures;
  }
  EXPECT_GT(failed, 10);
}

// The first worker has all of the last and smallest unit.
TEST_F(CollectiveSinkTest, WhoHasNoShardHearsThatASumHasFailed) {
  Make(SinkBy({}), 25);
  constexpr int kLast = kUnits - 1;
  ASSERT_EQ(exchange_->worker(1).shards.of(kLast).own.count, 0);
  ASSERT_EQ(exchange_->worker(2).shards.of(kLast).own.count, 0);
  FailCollective(1, ncclRemoteError);
  exchange_->RunAttempt({1, 1}, [&](ExchangingWorker& worker) -> absl::Status {
    worker.sink->BeginStep({.microbatches = 1, .packs = 1, .slot = worker.rank});
    std::deque<std::vector<float>> kept;
    SHOAL_ASSIGN_OR_RETURN(const std::span<float> accumulator, worker.sink->Accumulator(kLast));
    const std::vector<float> ones(accumulator.size(), 1.0F);
    SHOAL_RETURN_IF_ERROR(AddOnDevice(accumulator, ones, *worker.compute, kept));
    SHOAL_RETURN_IF_ERROR(worker.sink->Done(kLast));
    SHOAL_RETURN_IF_ERROR(worker.compute->Synchronize());
    const absl::Status flushed = worker.sink->Flush();
    EXPECT_FALSE(flushed.ok()) << "worker " << worker.rank;
    return flushed;
  });
}

// A worker that never arrives costs the others one timeout; no copies are left after that.
TEST_F(CollectiveSinkTest, AWorkerThatDoesNotComeIsTold) {
  CollectiveSink::Options options = SinkBy({});
  options.timeout = absl::Milliseconds(50);
  Make(options, 24);
  std::array<absl::Notification, 3> told;  // the first failure ends the others' waits
  const auto statuses =
      exchange_->RunAttempt({1, 1}, [&](ExchangingWorker& worker) -> absl::Status {
        if (worker.rank == 1) {
          return absl::OkStatus();
        }
        worker.sink->BeginStep({.microbatches = 1, .packs = 1, .slot = worker.rank});
        std::deque<std::vector<float>> kept;
        SHOAL_ASSIGN_OR_RETURN(const std::span<float> accumulator, worker.sink->Accumulator(1));
        const std::vector<float> ones(accumulator.size(), 1.0F);
        SHOAL_RETURN_IF_ERROR(AddOnDevice(accumulator, ones, *worker.compute, kept));
        SHOAL_RETURN_IF_ERROR(worker.sink->Done(1));
        SHOAL_RETURN_IF_ERROR(worker.compute->Synchronize());
        const absl::Status late = worker.sink->Flush();
        const absl::Status still = worker.sink->EndStep();
        EXPECT_EQ(still.code(), absl::StatusCode::kDeadlineExceeded);
        EXPECT_THAT(std::string(Message(still)),
                    HasSubstr("copies of gradients from the device: not done within 50ms"));
        EXPECT_EQ(worker.sink->Accumulator(2).status(), still);
        told[static_cast<size_t>(worker.rank)].Notify();
        told[static_cast<size_t>(2 - worker.rank)].WaitForNotificationWithTimeout(
            absl::Seconds(10));
        return late;
      });
  for (const int rank : {0, 2}) {
    const absl::Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(Message(status)),
                HasSubstr("gradient of block.0: not summed over all workers within 50ms"));
  }
}

TEST_F(CollectiveSinkTest, NothingGoesOnOnceCancelled) {
  Make(SinkBy({}));
  const absl::Status leaving = absl::CancelledError("leaving");
  const auto ended = exchange_->RunAttempt({1, 1}, [&](ExchangingWorker& worker) {
    worker.sink->BeginStep({.microbatches = 1, .packs = 1, .slot = worker.rank});
    EXPECT_TRUE(worker.sink->Accumulator(1).ok());
    worker.sink->Cancel(leaving);
    EXPECT_EQ(worker.sink->Done(1), leaving);
    EXPECT_EQ(worker.sink->Accumulator(2).status(), leaving);
    return absl::OkStatus();
  });
  EXPECT_THAT(ended, Each(leaving));
}

TEST_F(CollectiveSinkTest, MemoryThatDoesNotSufficeIsSaid) {
  Make(SinkBy({}));
  ExchangingWorker& worker = exchange_->worker(0);
  const std::unique_ptr<Device> small = *MakeCudaDevice({.budget_bytes = 1000});
  StepEnvironment environment = exchange_->environment(worker);
  environment.device = small.get();
  const auto sink =
      CollectiveSink::Create(SinkBy({}), environment, worker.shards, worker.exchange.get());
  EXPECT_EQ(sink.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shoal::worker
