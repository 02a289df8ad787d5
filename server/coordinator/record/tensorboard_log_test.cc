#include "server/coordinator/record/tensorboard_log.h"

#include <cstring>
#include <filesystem>

#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

TEST(TensorBoardRecord, IsFramedAsTensorBoardReadsIt) {
  const std::string record = TensorBoardRecord("123456789");
  ASSERT_EQ(record.size(), 8 + 4 + 9 + 4u);
  uint64_t length = 0;
  std::memcpy(&length, record.data(), sizeof(length));
  EXPECT_EQ(length, 9u);
  uint32_t masked = 0;
  std::memcpy(&masked, record.data() + 21, sizeof(masked));
  constexpr uint32_t kKnown = 0xE3069283;  // CRC-32C of "123456789"
  EXPECT_EQ(masked, ((kKnown >> 15) | (kKnown << 17)) + 0xA282EAD8U);
}

TEST(TensorBoardLog, HoldsVersionStartAndScalars) {
  const TemporaryFolder folder;
  {
    auto log = TensorBoardLog::Open(folder.path(), 4, 100.5);
    ASSERT_OK(log.status());
    ASSERT_OK(log->Append(4, 101.5, {{"loss/mean", 2.5}, {"lr", 0.5}}));
  }
  std::vector<tensorboard::Event> events;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents.10"));
    const std::string bytes = ReadFile(entry.path().string()).value();
    for (size_t at = 0; at < bytes.size();) {
      uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof(length));
      ASSERT_TRUE(events.emplace_back().ParseFromString(bytes.substr(at + 12, length)));
      at += 16 + length;
    }
  }
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[1].step(), 4);
  EXPECT_EQ(events[2].step(), 4);
  EXPECT_EQ(events[2].wall_time(), 101.5);
  EXPECT_EQ(events[2].summary().value(0).tag(), "loss/mean");
  EXPECT_EQ(events[2].summary().value(1).simple_value(), 0.5);
}

}  // namespace
}  // namespace shoal::server
