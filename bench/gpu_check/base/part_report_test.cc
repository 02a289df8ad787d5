// What a part saves while it runs, and what is read back.
#include "bench/gpu_check/base/part_report.h"

#include "bench/gpu_check/testing/parts.h"
#include "core/base/file.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

TEST(PartReport, IsOnDiskAtEachStepAndComesBack) {
  const std::string folder = NewFolder();
  PartReport report(folder, "some");
  report.AddTable("title", "text", {"a", "b"});
  report.AddRow({"1", "2"});
  EXPECT_EQ(PartReport::Load(folder, "some")->state(), PartState::kUnfinished);
  report.AddBar({"what", "bar", "found", true});
  report.SetValue("figure", 3.5);
  report.Finish(PartState::kDone, "", 2.5);
  ASSERT_TRUE(report.saved().ok());
  const auto loaded = PartReport::Load(folder, "some");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->ToJson(), report.ToJson());
  EXPECT_EQ(loaded->state(), PartState::kDone);
  EXPECT_EQ(loaded->values()["figure"], 3.5);
}

TEST(PartReport, RefusesWhatIsNone) {
  const std::string folder = NewFolder();
  EXPECT_FALSE(PartReport::Load(folder, "missing").ok());
  for (const char* text : {"", "{", "[]", "{}", R"({"state": "well"})", R"({"state": 3})"}) {
    ASSERT_TRUE(WriteFileAtomically(folder + "/bad.json", text).ok());
    EXPECT_FALSE(PartReport::Load(folder, "bad").ok()) << text;
  }
}

TEST(PartReport, AFolderThatCannotBeIsSaid) {
  PartReport report("/proc/no/such/folder", "some");
  report.Finish(PartState::kDone, "", 0);
  EXPECT_FALSE(report.saved().ok());
}

}  // namespace
}  // namespace shoal::bench
