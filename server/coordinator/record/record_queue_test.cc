#include "server/coordinator/record/record_queue.h"

#include <deque>
#include <optional>

#include "core/base/status.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

// Runs what it is given when told to, or never.
class Disk {
 public:
  RecordQueue::Executor executor() {
    return [this](std::function<void()> work) { waiting_.push_back(std::move(work)); };
  }
  void RunAll() {
    while (!waiting_.empty()) {
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      work();
    }
  }
  size_t waiting() const { return waiting_.size(); }

 private:
  std::deque<std::function<void()>> waiting_;
};

class RecordQueueTest : public ::testing::Test {
 protected:
  RecordQueueTest() {
    queue_.emplace(disk_.executor(), [this](const std::string& lines) {
      ++writes_;
      written_ += status_.ok() ? lines : "";
      return status_;
    });
  }
  Disk disk_;
  std::string written_;
  int writes_ = 0;
  absl::Status status_;
  std::optional<RecordQueue> queue_;
};

TEST_F(RecordQueueTest, LinesWaitUntilItIsOpenAndGoTogether) {
  queue_->Add({{"step", 1}});
  EXPECT_EQ(disk_.waiting(), 0u);
  queue_->Open();
  queue_->Add({{"step", 2}});
  EXPECT_EQ(disk_.waiting(), 1u) << "one write at a time";
  disk_.RunAll();
  EXPECT_EQ(written_, "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(writes_, 1);
  queue_->Add({{"step", 3}});
  disk_.RunAll();
  EXPECT_EQ(writes_, 2);
}

TEST_F(RecordQueueTest, WhatTheExecutorDroppedIsWrittenAtTheEnd) {
  queue_->Open();
  queue_->Add({{"event", "done"}});
  queue_.reset();  // the executor has stopped without running it
  EXPECT_EQ(written_, "{\"event\":\"done\"}\n");
}

TEST_F(RecordQueueTest, NothingIsWrittenOfARunThatDidNotBegin) {
  queue_->Add({{"event", "failed"}});
  queue_.reset();
  EXPECT_EQ(writes_, 0);
}

TEST_F(RecordQueueTest, AHungDiskBoundsWhatWaits) {
  queue_->Open();
  const Json line = {{"text", std::string(1 << 20, 'x')}};
  for (int i = 0; i < 6; ++i) {
    queue_->Add(line);
  }
  disk_.RunAll();
  EXPECT_LE(written_.size(), RecordQueue::kMaxBytes + 100);
  EXPECT_NE(written_.find("{\"event\":\"dropped\",\"lines\":3}\n"), std::string::npos);
}

TEST_F(RecordQueueTest, AFailedWriteDoesNotStopLaterOnes) {
  queue_->Open();
  status_ = ResourceExhausted("no space left on device");
  queue_->Add({{"step", 1}});
  disk_.RunAll();
  status_ = absl::OkStatus();
  queue_->Add({{"step", 2}});
  disk_.RunAll();
  EXPECT_EQ(written_, "{\"step\":2}\n");
}

}  // namespace
}  // namespace shoal::server
