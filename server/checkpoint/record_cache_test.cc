#include "server/checkpoint/record_cache.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

class RecordCacheTest : public testing::Test {
 protected:
  // Reads of the record that is named by `key`, and is that letter 30 times.
  std::string Read(const char& key, int64_t offset, size_t count, const absl::Status& status = {}) {
    std::string out(count, '?');
    const absl::Status read = cache_.Copy(
        &key, 30,
        [&](std::span<std::byte> record) {
          ++loads_;
          memory_ = record.data();
          std::fill(record.begin(), record.end(), static_cast<std::byte>(key));
          return status;
        },
        offset, std::as_writable_bytes(std::span(out)));
    return read.ok() ? out : std::string(Message(read));
  }
  std::string ReadInAnotherThread(const char& key, int64_t offset, size_t count) {
    std::string read;
    std::thread([&] { read = Read(key, offset, count); }).join();
    return read;
  }

  const char a_ = 'a';
  const char b_ = 'b';
  RecordCache cache_;
  int loads_ = 0;
  const std::byte* memory_ = nullptr;  // of the record loaded last
};

TEST_F(RecordCacheTest, LoadsARecordOnceForAllItsRanges) {
  for (int64_t offset = 0; offset < 30; offset += 10) {
    EXPECT_EQ(Read(a_, offset, 10), std::string(10, 'a'));
  }
  EXPECT_EQ(loads_, 1);
  const std::byte* const first = memory_;
  EXPECT_EQ(Read(b_, 5, 10), std::string(10, 'b'));
  EXPECT_EQ(loads_, 2);
  EXPECT_EQ(memory_, first) << "the next record takes the memory over";
  EXPECT_EQ(Read(a_, 0, 1), "a");
  EXPECT_EQ(loads_, 3);
}

TEST_F(RecordCacheTest, ThreadsShareARecord) {
  EXPECT_EQ(Read(a_, 0, 1), "a");
  EXPECT_EQ(ReadInAnotherThread(a_, 1, 1), "a");
  EXPECT_EQ(loads_, 1);
  const std::byte* const first = memory_;
  EXPECT_EQ(Read(b_, 0, 1), "b");
  EXPECT_NE(memory_, first) << "the other thread has it still";
  EXPECT_EQ(Read(a_, 2, 1), "a");
  EXPECT_EQ(loads_, 2);
}

// What a thread sanitizer finds here is a race of the cache.
TEST_F(RecordCacheTest, ThreadsGoFromRecordToRecordAtOnce) {
  const std::string keys = "abc";
  const auto read_all = [&](size_t begin) {
    for (size_t i = begin; i < begin + 300; ++i) {
      const char& key = keys[i / 2 % keys.size()];
      std::string out(10, '?');
      const absl::Status read = cache_.Copy(
          &key, 30,
          [&](std::span<std::byte> record) {
            std::fill(record.begin(), record.end(), static_cast<std::byte>(key));
            return absl::OkStatus();
          },
          10, std::as_writable_bytes(std::span(out)));
      EXPECT_TRUE(read.ok());
      EXPECT_EQ(out, std::string(10, key));
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back(read_all, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(RecordCacheTest, GivesNothingOfARecordThatCannotBeLoaded) {
  EXPECT_EQ(Read(a_, 0, 1, DataLoss("a is damaged")), "a is damaged");
  EXPECT_EQ(Read(a_, 1, 1), "a is damaged");
  EXPECT_EQ(Read(b_, 0, 1), "b");
  EXPECT_EQ(Read(a_, 0, 1), "a");
}

}  // namespace
}  // namespace shoal::server
