// Many pushes through the slots with duplicates, reordering, lost doorbells and broken connections,
// from a seed: each must count once. Gradients are small integers, so sums are exact in fp32 and
// any loss or double count shows.
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

constexpr uint64_t kWorkers = 2;
constexpr int64_t kPushesPerPartition = 2500;

struct Planned {
  int partition = 0;
  int64_t sequence = 0;
};

float ValueOf(const Planned& push) {
  return static_cast<float>((push.partition * 7 + push.sequence * 13) % 9 - 4);
}

// A worker that keeps all its slots busy and misbehaves.
class Worker {
 public:
  Worker(TestingCluster& cluster, uint64_t incarnation, uint64_t seed)
      : cluster_(cluster),
        random_(seed, incarnation),
        client_(&cluster.service(0), &cluster.client_transport(), incarnation, 1) {
    for (const plan::PartitionSpec& spec : cluster.partitions()) {
      for (int64_t sequence = 1; sequence <= kPushesPerPartition; ++sequence) {
        waiting_.push_back({spec.id, sequence});
      }
    }
    // Partitions interleave; within one, the order varies within a window.
    random_.Shuffle(waiting_);
    std::stable_sort(waiting_.begin(), waiting_.end(), [](const Planned& a, const Planned& b) {
      return a.sequence / 16 < b.sequence / 16;
    });
    std::reverse(waiting_.begin(), waiting_.end());
  }

  absl::Status Connect() {
    for (const auto& [slot, sent] : under_way_) {
      waiting_.push_back(sent.first);  // Outcome unknown: send again.
    }
    under_way_.clear();
    return client_.Connect();
  }

  int64_t duplicates() const { return duplicates_; }
  bool Finished() const { return waiting_.empty() && under_way_.empty(); }

  // Pushes into a free slot, or looks for an answer.
  void Act() {
    const auto slot =
        static_cast<int64_t>(random_.Below(static_cast<uint64_t>(client_.granted().slots())));
    const auto sent = under_way_.find(slot);
    if (sent != under_way_.end()) {
      const auto answer = client_.Poll(slot, sent->second.second);
      if (!answer.has_value()) {
        if (random_.Below(50) == 0) {
          client_.Ring(static_cast<uint32_t>(slot));
        }
        return;
      }
      ASSERT_EQ(answer->code, absl::StatusCode::kOk);
      duplicates_ += answer->applied_before ? 1 : 0;
      if (random_.Below(20) == 0) {
        waiting_.push_back(sent->second.first);  // As if its acknowledgement were lost.
      }
      under_way_.erase(sent);
      return;
    }
    if (waiting_.empty()) {
      return;
    }
    const Planned next = waiting_.back();
    waiting_.pop_back();
    const auto count =
        static_cast<size_t>(cluster_.partitions()[static_cast<size_t>(next.partition)].count);
    const uint64_t id = client_.Send(slot, {.partition = next.partition,
                                            .sequence = next.sequence,
                                            .gradient = std::vector<float>(count, ValueOf(next)),
                                            .ring = random_.Below(2000) != 0});
    under_way_[slot] = {next, id};
  }

 private:
  TestingCluster& cluster_;
  Random random_;
  TestingClient client_;
  std::vector<Planned> waiting_;
  std::map<int64_t, std::pair<Planned, uint64_t>> under_way_;
  int64_t duplicates_ = 0;  // answered as such
};

TEST(ExactlyOnce, OverDuplicatesReorderingLostDoorbellsAndReconnects) {
  const std::string folder = testing::TempDir() + "exactly-once-" + SecureToken();
  {
    // About 20 partitions of a few thousand elements.
    TestingCluster cluster(folder, 1, plan::Accumulate::kFloat, 1 << 14);
    ASSERT_OK(cluster.Configure());
    ASSERT_OK(cluster.BeginAttempt(1, 1));
    Random random(23);
    std::vector<std::unique_ptr<Worker>> workers;
    for (uint64_t w = 1; w <= kWorkers; ++w) {
      workers.push_back(std::make_unique<Worker>(cluster, w, 99));
      ASSERT_OK(workers.back()->Connect());
    }
    for (bool finished = false; !finished;) {
      finished = true;
      for (const auto& worker : workers) {
        for (int i = 0; i < 16; ++i) {
          worker->Act();
        }
        finished = finished && worker->Finished();
        if (random.Below(3000) == 0) {
          ASSERT_OK(worker->Connect());
        }
      }
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    auto request = OfTestingJob<proto::PrepareRequest>();
    request.set_step(1);
    request.set_attempt(1);
    const auto reply = cluster.service(0).Prepare(request);
    ASSERT_OK(reply.status());
    for (const auto& worker : workers) {
      EXPECT_GT(worker->duplicates(), 0);
    }
    for (const plan::PartitionSpec& spec : cluster.partitions()) {
      EXPECT_EQ(reply->pushes(spec.id), static_cast<int64_t>(kWorkers) * kPushesPerPartition);
      double sum = 0;
      for (int64_t sequence = 1; sequence <= kPushesPerPartition; ++sequence) {
        sum += static_cast<double>(kWorkers) * static_cast<double>(ValueOf({spec.id, sequence}));
      }
      EXPECT_EQ(reply->sums_of_squares(spec.id), sum * sum * static_cast<double>(spec.count))
          << spec.id;
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shoal::server
