#include "server/coordinator/record/run_record.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

namespace fs = std::filesystem;

class RunRecordTest : public ::testing::Test {
 protected:
  void Write(bool resume, std::string_view lines, int second) const {
    auto record =
        RunRecord::Open(folder_.path(), resume, "model: x\n", absl::FromUnixSeconds(second));
    ASSERT_OK(record.status());
    ASSERT_OK(record->Append(lines));
  }
  std::string path() const { return RecordFolder(folder_.path()) + "/metrics.jsonl"; }

  const TemporaryFolder folder_;
};

TEST_F(RunRecordTest, GoesOnOverResumesWithoutHalfLines) {
  Write(false, "{\"step\":1}\n", 1);
  std::ofstream(path(), std::ios::app) << "{\"ste";
  Write(true, "{\"step\":2}\n", 2);
  EXPECT_EQ(*ReadFile(path()), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(*ReadFile(RecordFolder(folder_.path()) + "/job.yaml"), "model: x\n");
}

TEST_F(RunRecordTest, EarlierRecordsAreKeptUpToABound) {
  constexpr int kRuns = RunRecord::kKept + 3;
  for (int run = 1; run <= kRuns; ++run) {
    Write(false, fmt::format("{}\n", run), run);
  }
  EXPECT_EQ(*ReadFile(path()), fmt::format("{}\n", kRuns));
  size_t kept = 0;
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    kept += entry.path().filename().string().starts_with("record-") ? 1 : 0;
  }
  EXPECT_EQ(kept, RunRecord::kKept);
  EXPECT_FALSE(fs::exists(folder_.path() + "/record-19700101T000002.000Z")) << "the oldest goes";
  EXPECT_EQ(*ReadFile(folder_.path() + "/record-19700101T000013.000Z/metrics.jsonl"), "12\n");
}

TEST_F(RunRecordTest, TriesThatFailPushNoEarlierRecordOut) {
  for (int run = 1; run <= 3; ++run) {
    Write(false, fmt::format("{}\n", run), run);
  }
  fs::rename(RecordFolder(folder_.path()), folder_ / "record-19700101T000004.000Z");
  fs::create_directories(RecordFolder(folder_.path()) + "/job.yaml");  // cannot be replaced
  for (int second = 5; second < 25; ++second) {
    EXPECT_FALSE(RunRecord::Open(folder_.path(), false, "", absl::FromUnixSeconds(second)).ok());
  }
  EXPECT_EQ(*ReadFile(folder_ / "record-19700101T000002.000Z/metrics.jsonl"), "1\n");
  EXPECT_EQ(*ReadFile(folder_ / "record-19700101T000004.000Z/metrics.jsonl"), "3\n");
}

// By tag.
std::map<std::string, float> ScalarsOf(const std::string& folder) {
  std::map<std::string, float> scalars;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("events.out.tfevents.")) {
      continue;
    }
    const std::string bytes = ReadFile(entry.path().string()).value();
    for (size_t at = 0; at < bytes.size();) {  // length, its checksum, event, its checksum
      uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof(length));
      tensorboard::Event event;
      EXPECT_TRUE(event.ParseFromString(bytes.substr(at + 12, length)));
      for (const auto& value : event.summary().value()) {
        scalars[value.tag()] = value.simple_value();
      }
      at += 16 + length;
    }
  }
  return scalars;
}

TEST_F(RunRecordTest, AValidationOfPairsHasItsRewardsInTensorBoard) {
  RunRecord record = RunRecord::Open(folder_.path(), false, "", absl::UnixEpoch(), true).value();
  constexpr std::string_view kPairs =
      R"("rewards/chosen":1.5,"rewards/rejected":-0.5,"rewards/accuracies":0.75,)"
      R"("rewards/margins":2,"logps/chosen":-8,"logps/rejected":-9})";
  ASSERT_OK(record.Append(fmt::format(R"({{"event":"step","step":1,"time":1,"loss":3,{})"
                                      "\n"
                                      R"({{"event":"validation","step":1,"time":2,"loss":4,{})"
                                      "\n",
                                      kPairs, kPairs)));
  std::map<std::string, float> expected = {{"loss/mean", 3}, {"validation/loss", 4}};
  for (const std::string before : {"", "validation/"}) {
    expected.insert({{before + "rewards/chosen", 1.5F},
                     {before + "rewards/rejected", -0.5F},
                     {before + "rewards/accuracies", 0.75F},
                     {before + "rewards/margins", 2.0F},
                     {before + "logps/chosen", -8.0F},
                     {before + "logps/rejected", -9.0F}});
  }
  EXPECT_EQ(ScalarsOf(RecordFolder(folder_.path())), expected);
}

TEST_F(RunRecordTest, WhatIsNoNumberIsLeftOutOfTensorBoard) {
  RunRecord record = RunRecord::Open(folder_.path(), false, "", absl::UnixEpoch(), true).value();
  ASSERT_OK(record.Append(
      R"({"event":"step","step":1,"time":1,"loss":null,"time_shares":{"compute":null}})"
      "\n"));
}

TEST_F(RunRecordTest, AFolderThatCannotBeWrittenIsNamed) {
  const absl::Status status = RunRecord::Open("/proc", false, "", absl::UnixEpoch()).status();
  EXPECT_NE(Message(status).find("/proc/record"), std::string::npos) << status;
}

}  // namespace
}  // namespace shoal::server
